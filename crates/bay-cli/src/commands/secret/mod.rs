mod render;
mod value;

use bay_client::invalid;
use bay_types::secret::{SecretFile, SecretRotate, SecretSet, SecretSource, SecretText, SecretView};
use clap::{Args, Subcommand};
use jiff::{SignedDuration, Timestamp};

use crate::failure::Outcome;
use crate::global_options::GlobalOptions;
use crate::output::{data, json, talk};
use bay_text::percent::segment;
use value::Given;

/// Manage credentials that bays use and never contain.
///
/// The daemon stores the value, encrypted. In a bay, tools find a sentinel of the same form where they expect the
/// credential. The gateway replaces the sentinel by the value: in one slot of requests to the hosts, methods and paths
/// of the secret, over TLS, if the bay's policy allows them. No command prints a value.
///
/// A use is written `[METHODS ]HOST[:PORT][/PATH] as SLOT`. SLOT is `bearer`, `token`, `basic`, `basic-user`,
/// `x-api-key`, `header NAME` or `query NAME`. `rule:ID as SLOT` means the requests that a rule of the bay's policy
/// matches. `HOST[:PORT][/DATABASE] as postgres [USER]` is for logins to a database; `postgres-plain` also permits
/// logins without TLS, and `HOST as postgres [USER] with replication` also permits replicas. Well-known services have
/// short names: github, gitlab, openai, anthropic, gemini, openrouter, mistral, deepseek, groq, xai, npm, pypi, cargo,
/// docker.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  bay secret set GITHUB_TOKEN --from-env GITHUB_TOKEN --for github\n  bay secret set API_KEY - --for \"GET,POST api.example.com/v1/** as bearer\"\n  bay secret set NPM --from-file token.txt --for \"npm.example.com as bearer\" --file '/root/.npmrc=//npm.example.com/:_authToken={}'\n  bay secret set CLOUD --from-command 'cloud print-token' --refresh 30m --for \"api.cloud.example as bearer\"\n  bay secret rotate API_KEY --from-file new-token.txt\n  bay secret ls"
)]
pub(crate) struct Secret {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Set a secret: its value, its uses, and where bays find its sentinel.
    ///
    /// The sentinel is the placeholder that a bay sees instead of the value.
    Set(Set),
    /// List the secrets, without their values.
    Ls,
    /// Show the uses of a secret and how they went, without its value.
    Show {
        /// Name of the secret.
        name: String,
    },
    /// Give a secret a new value, from its next use on.
    ///
    /// If the value comes from a command, the command runs again.
    Rotate {
        /// Name of the secret.
        name: String,
        #[command(flatten)]
        value: Given,
        /// When the new value expires: a time, or a duration from now such as 12h.
        #[arg(long, value_name = "TIME", value_parser = moment)]
        expires: Option<Timestamp>,
        /// Accept a value that is easy to guess. Answers that contain it are cut off.
        #[arg(long)]
        allow_weak: bool,
    },
    /// Remove secrets. Connections that use them are closed, and their sentinels are refused from then on.
    Rm {
        /// Names of the secrets, from `bay secret ls`.
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
}

#[derive(Debug, Args)]
struct Set {
    /// Name of the secret. It is also the name of its variable in bays, unless --env, --file, --git or a preset names
    /// other places.
    name: String,
    #[command(flatten)]
    value: Given,
    /// A command that prints the value. The daemon runs it as the user who sets the secret: now, and when a value is
    /// needed after --refresh or after it expired.
    #[arg(long, value_name = "COMMAND", group = "source")]
    from_command: Option<String>,
    /// Run the command again when a value older than this is needed.
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "1h", requires = "from_command")]
    refresh: u64,
    /// Where the value may be sent: `[METHODS ]HOST[:PORT][/PATH] as SLOT`, `rule:ID as SLOT`, or a preset such as
    /// github; `bay secret --help` has the slots. May be repeated.
    #[arg(long = "for", value_name = "RULE", required = true)]
    uses: Vec<String>,
    /// A variable that contains the sentinel, in every command that starts in the bay. May be repeated.
    #[arg(long, value_name = "NAME")]
    env: Vec<String>,
    /// A file in the bay that contains the sentinel. In the text, {} is replaced by it. May be repeated.
    #[arg(long, value_name = "PATH[=TEXT]", value_parser = file)]
    file: Vec<SecretFile>,
    /// A host for which git in the bay gets the sentinel as its password, so that it does not ask for one. May be
    /// repeated.
    #[arg(long, value_name = "[USER@]HOST")]
    git: Vec<String>,
    /// Only this bay and its forks have it [default: every bay]. May be repeated.
    #[arg(long, value_name = "BAY")]
    bay: Vec<String>,
    /// Permit other credentials for its hosts, which are refused otherwise.
    #[arg(long)]
    unmanaged: bool,
    /// Permit sentinels in bodies to its hosts, unchanged. For models, which receive text that an agent printed.
    #[arg(long)]
    literal_bodies: bool,
    /// Accept a value that is easy to guess, which is refused otherwise. Answers that contain it are cut off.
    #[arg(long)]
    allow_weak: bool,
    /// When it expires: a time, or a duration from now such as 12h.
    #[arg(long, value_name = "TIME", value_parser = moment)]
    expires: Option<Timestamp>,
}

fn time(text: &str) -> Result<u64, String> {
    let wrong = || "give a time such as 90s, 10m or 2h".to_owned();
    let time: SignedDuration = text.parse().map_err(|_| wrong())?;
    u64::try_from(time.as_secs()).ok().filter(|seconds| *seconds > 0).ok_or_else(wrong)
}

fn moment(text: &str) -> Result<Timestamp, String> {
    if let Ok(moment) = text.parse() {
        return Ok(moment);
    }
    let wrong = || "give a moment such as 2030-01-31T18:00:00Z, or a time from now such as 12h".to_owned();
    let seconds = time(text).map_err(|_| wrong())?;
    let ahead = SignedDuration::from_secs(i64::try_from(seconds).map_err(|_| wrong())?);
    Timestamp::now().checked_add(ahead).map_err(|_| wrong())
}

fn file(text: &str) -> Result<SecretFile, String> {
    let (path, text) = text.split_once('=').unwrap_or((text, "{}"));
    // A single argument of a shell has no line breaks.
    let text = text.replace("\\n", "\n");
    let end = if text.ends_with('\n') { "" } else { "\n" };
    Ok(SecretFile { path: path.to_owned(), text: format!("{text}{end}") })
}

fn path(name: &str, rest: &str) -> String {
    format!("/v1/secrets/{}{rest}", segment(name))
}

impl Secret {
    pub(crate) async fn run(self, global: &GlobalOptions) -> Outcome {
        let mut client = global.client();
        match self.verb {
            Verb::Set(set) => {
                let name = set.name.clone();
                let wanted = set.wanted()?;
                let made: SecretView = client.put(&path(&name, ""), &wanted).await?;
                shown(&made, global.json)?;
            }
            Verb::Ls => {
                let all: Vec<SecretView> = client.get("/v1/secrets").await?;
                if global.json {
                    json(&all)?;
                } else if all.is_empty() {
                    talk("there are no secrets: `bay secret set NAME - --for \"HOST as bearer\"` makes one");
                } else {
                    data(&render::table(&all, Timestamp::now()))?;
                }
            }
            Verb::Show { name } => {
                let found: SecretView = client.get(&path(&name, "")).await?;
                shown(&found, global.json)?;
            }
            Verb::Rotate { name, value, expires, allow_weak } => {
                let wanted = SecretRotate { value: value.read()?, expires, allow_weak };
                let made: SecretView = client.post(&path(&name, "/rotate"), &wanted).await?;
                shown(&made, global.json)?;
            }
            Verb::Rm { names } => {
                for name in names {
                    let gone: SecretView = client.delete(&path(&name, "")).await?;
                    if global.json {
                        json(&gone)?;
                    } else {
                        data(&format!("{} is removed", gone.name))?;
                    }
                }
            }
        }
        Ok(0)
    }
}

fn shown(view: &SecretView, as_json: bool) -> Result<(), crate::failure::Failure> {
    if as_json { json(view) } else { data(&render::whole(view, Timestamp::now())) }
}

impl Set {
    fn wanted(self) -> Result<SecretSet, bay_types::ApiError> {
        let source = match (self.value.read()?, self.from_command) {
            (Some(value), None) => SecretSource::Value(value),
            (None, Some(line)) => {
                SecretSource::Command { line: SecretText::new(line), refresh_s: self.refresh }
            }
            _ => {
                return Err(invalid(
                    "no source of the value is given",
                    "give --from-env, --from-file, --from-command, or - for standard input",
                ));
            }
        };
        Ok(SecretSet {
            source,
            uses: self.uses,
            env: self.env,
            files: self.file,
            git: self.git,
            bays: self.bay,
            unmanaged: self.unmanaged,
            literal_bodies: self.literal_bodies,
            allow_weak: self.allow_weak,
            expires: self.expires,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_argument_has_a_path_and_a_text_with_a_placeholder() {
        assert_eq!(
            file("/root/token"),
            Ok(SecretFile { path: "/root/token".to_owned(), text: "{}\n".to_owned() })
        );
        let npm = file("/root/.npmrc=registry=https://n.test\\n//n.test/:_authToken={}").unwrap();
        assert_eq!(npm.path, "/root/.npmrc");
        assert_eq!(npm.text, "registry=https://n.test\n//n.test/:_authToken={}\n");
    }

    #[test]
    fn an_expiry_is_a_time_or_a_duration_from_now() {
        assert_eq!(moment("2100-01-01T00:00:00Z"), "2100-01-01T00:00:00Z".parse().map_err(|_| String::new()));
        assert!(moment("12h").unwrap() > Timestamp::now());
        assert!(moment("soon").is_err());
    }
}
