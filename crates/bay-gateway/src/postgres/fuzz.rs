//! Entry points for the fuzz target `postgres_logins`: the parts of a login that the gateway parses, from the bay and
//! from the database. Compiled only for fuzzing and for the tests below.

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::database::Line;
use super::wire::{self, Startup};
use super::{parameters, scram};
use crate::stream::Prefixed;

const USER: &str = "app";
/// The password. The client cannot know it, and the database must not see it without TLS. No message has it by
/// chance: where it is found, it was leaked.
const PASSWORD: &str = "fuzz-pass\u{1}word";
/// Size of the pipe between gateway and database: more than a login writes, because nobody reads before it is over.
const PIPE_BYTES: usize = 1 << 20;

fn run<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(work)
}

/// Input from a client of the bay. The gateway parses or refuses it, and no input logs in by chance.
pub fn client_says(mut bytes: &[u8]) {
    run(async {
        loop {
            match wire::startup(&mut bytes).await {
                Ok(Startup::Begin { parameters, .. }) => {
                    let again = wire::parse_startup(&wire::begin(&parameters)[4..])
                        .expect("what is passed on can be read");
                    assert_eq!(again, Startup::Begin { minor: 0, parameters: parameters.clone() });
                    let passed = parameters::checked(&parameters, false).unwrap_or_default();
                    assert!(passed.iter().all(|(name, _)| name != "replication"), "{passed:?}");
                    break;
                }
                Ok(Startup::Cancel(packet)) => {
                    assert!(
                        matches!(wire::parse_startup(&packet[4..]), Ok(Startup::Cancel(same)) if same == packet)
                    );
                    return;
                }
                Ok(Startup::Ssl | Startup::Gss) => {}
                Err(_) => return,
            }
        }
        let Ok((_, first)) = wire::read(&mut bytes).await else { return };
        let Ok(server) = scram::Server::new(&first) else { return };
        let Ok((_, last)) = wire::read(&mut bytes).await else { return };
        assert!(!matches!(server.check(&last, &[PASSWORD.to_owned()]), Ok(Some(_))), "it knew the password");
    });
}

/// Input from a database. It never gets the plain password without TLS.
pub fn database_says(bytes: &[u8], encrypted: bool) {
    run(async {
        let (near, far) = tokio::io::duplex(PIPE_BYTES.max(bytes.len()));
        let (mut from_gateway, mut to_gateway) = tokio::io::split(far);
        to_gateway.write_all(bytes).await.expect("room for all of it");
        to_gateway.shutdown().await.expect("the end of what it says");
        let parameters = [("user".to_owned(), USER.to_owned())];
        let mut line = Line { stream: Prefixed::new(near), encrypted };
        let _ = line.log_in(&parameters, USER, PASSWORD, None).await;
        drop(line);
        let mut written = Vec::new();
        from_gateway.read_to_end(&mut written).await.expect("what the gateway wrote");
        let shown = written.windows(PASSWORD.len()).any(|part| part == PASSWORD.as_bytes());
        assert!(encrypted || !shown, "the password went over the network as it is");
    });
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn requests() -> impl Strategy<Value = Vec<u8>> {
        let kind = prop::sample::select(b"RRRRENS".to_vec());
        let asked = prop::sample::select(vec![0_u32, 3, 5, 10, 11, 12, 13]);
        let text = prop_oneof![
            prop::collection::vec(any::<u8>(), 0..40),
            Just(b"SCRAM-SHA-256\0\0".to_vec()),
            Just(b"salt".to_vec()),
        ];
        (kind, asked, text).prop_map(|(kind, asked, text)| {
            wire::message(kind, &[&asked.to_be_bytes()[..], &text].concat()).to_vec()
        })
    }

    proptest! {
        #[test]
        fn no_client_logs_in_by_chance(said: Vec<u8>, first: Vec<u8>, last: Vec<u8>) {
            client_says(&said);
            let begin = wire::begin(&[("user".to_owned(), USER.to_owned())]);
            let first = wire::message(b'p', &[b"n,,n=,r=", &first[..]].concat()).to_vec();
            client_says(&[begin, first, wire::message(b'p', &last).to_vec()].concat());
        }

        #[test]
        fn no_database_sees_the_password_without_tls(
            messages in prop::collection::vec(requests(), 0..6), rest: Vec<u8>, encrypted: bool,
        ) {
            database_says(&[messages.concat(), rest].concat(), encrypted);
        }
    }
}
