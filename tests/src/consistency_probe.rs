//! A process in a bay that shows whether memory and files are of one moment.
//!
//! The probe holds a word in its memory and writes the same word to the workspace and to the root. It also counts and
//! appends each number to a file. If memory is restored beside files of another moment, the file misses numbers or has
//! some twice.

use serde_json::json;

use crate::suite::{self, Lack};
use crate::wait::{until, within};
use crate::{Daemon, image};

const PROGRAM: &str = r#"
import select, socket
server = socket.create_server(("127.0.0.1", 7777))
word, number = "first", 0
count = open("/workspace/count", "a")
def keep():
    for path in ("/workspace/word", "/etc/word"):
        with open(path, "w") as file:
            file.write(word + "\n")
keep()
while True:
    number += 1
    count.write("%d\n" % number)
    count.flush()
    if select.select([server], [], [], 0.01)[0]:
        peer, _ = server.accept()
        said = peer.makefile().readline().strip()
        if said:
            word = said
            keep()
        peer.sendall(("%s\n" % word).encode())
        peer.close()
"#;

/// Asks the probe for its word, and reads both files in the same command.
const LOOK: &str = r#"
memory=$(echo "$1" | timeout 10 nc 127.0.0.1 7777)
echo "memory=$memory"
echo "workspace=$(cat /workspace/word)"
echo "root=$(cat /etc/word)"
awk '$1 != NR { print "disorder=line " NR " is " $1; exit }' /workspace/count
"#;

/// Whether this host can capture memory and bays can run the probe. If not, the test counts as skipped.
#[must_use]
pub fn can_run(daemon: &Daemon) -> bool {
    if !image::with_python() {
        return false;
    }
    let doctor = daemon.bay(&["doctor", "--json"]).json();
    let criu = doctor["checks"].as_array().into_iter().flatten().find(|check| check["id"] == "criu");
    let able = criu.is_some_and(|check| check["state"] == "ok");
    if !able {
        suite::skip(Lack::Installable, &format!("no CRIU that works here: {criu:?}"));
    }
    able
}

/// Starts the probe in a bay where none runs.
///
/// # Panics
/// If the probe does not answer.
pub fn start(daemon: &Daemon, bay: &str) {
    let _gone = daemon.sh(bay, "rm -f /workspace/count").ok();
    let _begun = daemon.bay(&["exec", bay, "-d", "--", "python3", "-c", PROGRAM]).ok();
    until("the probe to answer", || look(daemon, bay, "").filter(|word| word == "first"));
}

/// Sets the word that the probe holds.
///
/// # Panics
/// If the probe answers with another word.
pub fn set_word(daemon: &Daemon, bay: &str, word: &str) {
    assert_eq!(look(daemon, bay, word).as_deref(), Some(word), "{bay}");
}

/// The word that the probe holds, or nothing if it does not run.
///
/// # Panics
/// If memory and files are of two moments.
#[must_use]
pub fn word(daemon: &Daemon, bay: &str) -> Option<String> {
    look(daemon, bay, "")
}

/// The word in both files, whether the probe runs or not.
///
/// # Panics
/// If the files differ.
#[must_use]
pub fn word_in_files(daemon: &Daemon, bay: &str) -> String {
    let text = until("the bay to take a command", || {
        let ran = daemon.sh(bay, "cat /workspace/word /etc/word");
        (ran.code == 0).then(|| ran.text())
    });
    let (workspace, root) = text.split_once('\n').unwrap_or_default();
    assert_eq!(workspace, root, "the files of {bay} are of two moments");
    workspace.to_owned()
}

fn look(daemon: &Daemon, bay: &str, word: &str) -> Option<String> {
    let args = ["exec", bay, "--", "sh", "-c", LOOK, "look", word];
    // A bay that has just begun may not accept commands yet.
    let said = within(crate::wait::PATIENCE, || {
        let ran = daemon.bay(&args);
        (ran.code == 0).then(|| ran.text())
    });
    let said = said.unwrap_or_else(|| panic!("{bay} takes no commands: {}", daemon.bay(&args)));
    let told = |key: &str| said.lines().find_map(|line| line.strip_prefix(key)).map(str::to_owned);
    let memory = told("memory=").filter(|word| !word.is_empty())?;
    let files = json!([told("workspace="), told("root=")]);
    assert_eq!(files, json!([memory, memory]), "{bay}: memory and files are of two moments");
    assert_eq!(told("disorder="), None, "{bay}: it went on beside files of another moment");
    Some(memory)
}
