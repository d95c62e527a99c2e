//! The grammar of the command line, and the dispatch to verbs.

use std::ffi::OsString;
use std::process::ExitCode;

use bay_bench::Bench;
use bay_types::ApiError;
use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory, Parser, Subcommand};

use crate::commands::{
    approvals, attach, audit, backends, bench, branch, bundle, checkpoint, checkpoints, compare, completions,
    cp, df, diff, doctor, egress, exec, execs, fork, forward, grants, images, install, kill, logs, ls,
    notify, pause, policy, pool, ports, promote, replace, repos, restore, resume, review, rm, secret,
    services, set, shell, show, start, stop, story, timeline, uninstall, up, watch, workspaces,
};
use crate::daemon_in_this_executable::DaemonInThisExecutable;
use crate::failure::Outcome;
use crate::global_options::GlobalOptions;
use crate::serve_options::Serve;
use crate::top::Top;
use crate::{one_thread, output};

/// Persistent, isolated Linux workstations for coding agents.
#[derive(Debug, Parser)]
#[command(
    name = "bay",
    version,
    propagate_version = true,
    subcommand_required = true,
    arg_required_else_help = true,
    after_help = "Examples:\n  bay up .                     a bay for this repository\n  bay exec NAME -- make test   run a command in it\n  bay shell NAME               look around\n  bay ls                       list the bays with their states\n\nErrors have stable codes and exit statuses, listed in docs/errors.md."
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: GlobalOptions,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Up(up::Up),
    Ls(ls::Ls),
    Show(show::Show),
    Top(Top),
    Exec(exec::Exec),
    Shell(shell::Shell),
    Attach(attach::Attach),
    Cp(cp::Cp),
    Stop(stop::Stop),
    Start(start::Start),
    Pause(pause::Pause),
    Resume(resume::Resume),
    Set(set::Set),
    Replace(replace::Replace),
    Checkpoint(checkpoint::Checkpoint),
    Checkpoints(checkpoints::Checkpoints),
    Diff(diff::Diff),
    Review(review::Review),
    Restore(restore::Restore),
    Fork(fork::Fork),
    Promote(promote::Promote),
    Rm(rm::Rm),
    Logs(logs::Logs),
    Kill(kill::Kill),
    Execs(execs::Execs),
    Services(services::Services),
    Bundle(bundle::Bundle),
    Branch(branch::Branch),
    Policy(policy::Policy),
    Grants(grants::Grants),
    Approvals(approvals::Approvals),
    Notify(notify::Notify),
    Secret(secret::Secret),
    Egress(egress::Egress),
    Story(story::Story),
    Timeline(timeline::Timeline),
    Audit(audit::Audit),
    Compare(compare::Compare),
    Watch(watch::Watch),
    Ports(ports::Ports),
    Forward(forward::Forward),
    Repos(repos::Repos),
    Workspaces(workspaces::Workspaces),
    Images(images::Images),
    Df(df::Df),
    Pool(pool::PoolCommand),
    Backends(backends::Backends),
    Serve(Serve),
    Doctor(doctor::Doctor),
    Bench(Bench),
    Install(install::Install),
    Uninstall(uninstall::Uninstall),
    Completions(completions::Completions),
}

/// Parses the command line and runs the verb.
pub fn run(daemon: &DaemonInThisExecutable) -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return misused(error, std::env::args_os()),
    };
    let json = cli.global.json;
    let outcome = match cli.verb {
        // These verbs start their own async runtime, or need none.
        Verb::Serve(verb) => verb.run(daemon, &cli.global),
        Verb::Completions(verb) => verb.run(Cli::command()),
        Verb::Install(verb) => verb.run(&cli.global),
        Verb::Uninstall(verb) => verb.run(&cli.global),
        verb => one_thread::block_on(dispatch(verb, daemon, cli.global)),
    };
    ExitCode::from(outcome.unwrap_or_else(|failure| output::report(&failure, json)))
}

/// Reports an invalid command line; with `--json` in the form of every other error. Requested help or version output is
/// not an error.
fn misused(mut error: clap::Error, line: impl Iterator<Item = OsString>) -> ExitCode {
    without_common_options(&mut error);
    let json = line.take_while(|word| word != "--").any(|word| word == "--json");
    if !json || !error.use_stderr() {
        let _ = error.print();
        return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
    }
    ExitCode::from(output::report(&usage(&error.render().to_string()).into(), true))
}

/// Removes the options that locate the daemon from a usage line. They usually come from the environment, and say
/// nothing about how a verb is used.
fn without_common_options(error: &mut clap::Error) {
    let Some(ContextValue::StyledStr(usage)) = error.get(ContextKind::Usage) else { return };
    let mut plain = usage.to_string();
    for option in [" --data-dir <DIR>", " --socket <PATH>", " --pool <DIR>", " --no-autostart", " --json"] {
        plain = plain.replace(option, "");
    }
    error.insert(ContextKind::Usage, ContextValue::StyledStr(plain.into()));
}

/// Splits clap's message: the first paragraph is the error, and a tip, if there is one, is the next step.
fn usage(said: &str) -> ApiError {
    let mut paragraphs = said.split("\n\n").map(|text| text.split_whitespace().collect::<Vec<_>>().join(" "));
    let first = paragraphs.next().unwrap_or_default();
    let message = match first.strip_prefix("error: ") {
        Some(message) => message.to_owned(),
        None => "a command is missing".to_owned(),
    };
    let tip = paragraphs.find_map(|text| text.strip_prefix("tip: ").map(str::to_owned));
    let next = tip.unwrap_or_else(|| "`bay --help` and `bay VERB --help` show the usage".to_owned());
    bay_client::invalid(message, next)
}

async fn dispatch(verb: Verb, daemon: &DaemonInThisExecutable, global: GlobalOptions) -> Outcome {
    match verb {
        Verb::Up(verb) => verb.run(&global).await,
        Verb::Ls(verb) => verb.run(&global).await,
        Verb::Show(verb) => verb.run(&global).await,
        Verb::Top(verb) => verb.run(&global).await,
        Verb::Exec(verb) => verb.run(&global).await,
        Verb::Shell(verb) => verb.run(&global).await,
        Verb::Attach(verb) => verb.run(&global).await,
        Verb::Cp(verb) => verb.run(&global).await,
        Verb::Stop(verb) => verb.run(&global).await,
        Verb::Start(verb) => verb.run(&global).await,
        Verb::Pause(verb) => verb.run(&global).await,
        Verb::Resume(verb) => verb.run(&global).await,
        Verb::Set(verb) => verb.run(&global).await,
        Verb::Replace(verb) => verb.run(&global).await,
        Verb::Checkpoint(verb) => verb.run(&global).await,
        Verb::Checkpoints(verb) => verb.run(&global).await,
        Verb::Diff(verb) => verb.run(&global).await,
        Verb::Review(verb) => verb.run(&global).await,
        Verb::Restore(verb) => verb.run(&global).await,
        Verb::Fork(verb) => verb.run(&global).await,
        Verb::Promote(verb) => verb.run(&global).await,
        Verb::Rm(verb) => verb.run(&global).await,
        Verb::Logs(verb) => verb.run(&global).await,
        Verb::Kill(verb) => verb.run(&global).await,
        Verb::Execs(verb) => verb.run(&global).await,
        Verb::Services(verb) => verb.run(&global).await,
        Verb::Bundle(verb) => verb.run(&global).await,
        Verb::Branch(verb) => verb.run(&global).await,
        Verb::Policy(verb) => verb.run(&global).await,
        Verb::Grants(verb) => verb.run(&global).await,
        Verb::Approvals(verb) => verb.run(&global).await,
        Verb::Notify(verb) => verb.run(&global).await,
        Verb::Secret(verb) => verb.run(&global).await,
        Verb::Egress(verb) => verb.run(&global).await,
        Verb::Story(verb) => verb.run(&global).await,
        Verb::Timeline(verb) => verb.run(&global).await,
        Verb::Audit(verb) => verb.run(&global).await,
        Verb::Backends(verb) => verb.run(&global).await,
        Verb::Compare(verb) => verb.run(&global).await,
        Verb::Watch(verb) => verb.run(&global).await,
        Verb::Ports(verb) => verb.run(&global).await,
        Verb::Forward(verb) => verb.run(&global).await,
        Verb::Repos(verb) => verb.run(&global).await,
        Verb::Workspaces(verb) => verb.run(&global).await,
        Verb::Images(verb) => verb.run(&global).await,
        Verb::Df(verb) => verb.run(&global).await,
        Verb::Pool(verb) => verb.run(&global).await,
        Verb::Doctor(verb) => verb.run(daemon, &global).await,
        Verb::Bench(verb) => bench::run(verb, &global).await,
        Verb::Serve(verb) => verb.run(daemon, &global),
        Verb::Completions(verb) => verb.run(Cli::command()),
        Verb::Install(verb) => verb.run(&global),
        Verb::Uninstall(verb) => verb.run(&global),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn the_grammar_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_verb_has_a_description_and_an_example() {
        for verb in Cli::command().get_subcommands().filter(|verb| !verb.is_hide_set()) {
            assert!(verb.get_about().is_some(), "{} has no sentence", verb.get_name());
            let after = verb.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(after.contains("bay "), "{} has no example", verb.get_name());
        }
    }

    #[test]
    fn the_socket_and_the_pool_are_in_the_data_directory_by_default() {
        let cli = Cli::try_parse_from(["bay", "--data-dir", "/d", "ls"]).unwrap();
        if std::env::var_os("BAY_SOCKET").is_none() && std::env::var_os("BAY_POOL").is_none() {
            assert_eq!(cli.global.location().socket, PathBuf::from("/d/bay.sock"));
            assert_eq!(cli.global.location().pool, PathBuf::from("/d/pool"));
        }
    }

    #[test]
    fn an_invalid_command_line_is_reported_like_any_other_error() {
        let error = |line: &[&str]| usage(&Cli::try_parse_from(line).unwrap_err().render().to_string());
        let unknown = error(&["bay", "ls", "--quit"]);
        assert_eq!(unknown.message, "unexpected argument '--quit' found");
        assert!(unknown.next.contains("'--quiet'"), "{unknown:?}");
        let missing = error(&["bay", "show"]);
        assert!(missing.message.contains("<NAME>"), "{missing:?}");
        assert!(missing.next.contains("--help"), "{missing:?}");
        assert_eq!(error(&["bay"]).message, "a command is missing");
    }

    #[test]
    fn a_usage_line_omits_the_options_that_locate_the_daemon() {
        let mut error =
            Cli::try_parse_from(["bay", "--data-dir", "/d", "--no-autostart", "checkpoint"]).unwrap_err();
        without_common_options(&mut error);
        let said = error.render().to_string();
        assert!(said.contains("Usage: bay checkpoint <NAME>"), "{said}");
    }

    #[test]
    fn an_error_lists_the_possible_values() {
        let line = ["bay", "services", "add", "b", "x", "--restart", "sometimes", "--", "true"];
        let said = Cli::try_parse_from(line).unwrap_err().render().to_string();
        assert!(said.contains("`always` `on-failure` `never`"), "{said}");
    }

    #[test]
    fn an_empty_path_counts_as_unset() {
        let cli = Cli::try_parse_from(["bay", "--data-dir", "", "--socket", "", "--pool", "", "ls"]).unwrap();
        assert_eq!(cli.global.location().socket, PathBuf::from("/var/lib/workbay/bay.sock"));
        assert_eq!(cli.global.location().pool, PathBuf::from("/var/lib/workbay/pool"));
    }

    #[test]
    fn flags_after_the_command_belong_to_it() {
        for line in [
            &["bay", "exec", "web", "--", "ls", "--json", "-la"][..],
            &["bay", "exec", "web", "ls", "--json", "-la"],
            &["bay", "exec", "-t", "web", "ls", "--json", "-la"],
            &["bay", "exec", "web", "-t", "--", "ls", "--json", "-la"],
        ] {
            let cli = Cli::try_parse_from(line).unwrap();
            assert!(!cli.global.json, "{line:?}");
            let Verb::Exec(exec) = cli.verb else { panic!("{line:?}") };
            assert_eq!(exec.command, ["ls", "--json", "-la"], "{line:?}");
        }
    }
}
