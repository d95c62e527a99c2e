//! Commands that a bay's SSH client asks for: refused, or one of git's two services of a repository, written anew so that no
//! shell reads anything else into it.
#![no_main]

use bay_policy::{CanonicalRequest, GitSsh};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|command: &[u8]| {
    let Ok((service, path)) = GitSsh::read_command(command) else { return };
    let Ok(request) = CanonicalRequest::git_ssh("git.test", 22, service, &path) else { return };
    let sent = request.git().expect("git").command();
    let inner = sent.strip_suffix('\'').and_then(|sent| sent.split_once(" '")).expect("quoted").1;
    assert!(inner.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/._-+@~,:=".contains(&byte)), "{sent}");
    assert!(!inner.split('/').any(|part| part == ".." || part == "."), "{sent}");
    let (again, same) = GitSsh::read_command(sent.as_bytes()).expect("what is sent can be read");
    assert_eq!(CanonicalRequest::git_ssh("git.test", 22, again, &same).expect("canonical"), request);
    assert_eq!(CanonicalRequest::from_line(&request.to_string()).expect("a line"), request);
});
