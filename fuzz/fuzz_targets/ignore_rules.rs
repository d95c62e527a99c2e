//! A `.gitignore` file and a path from an agent's tree, as the daemon reads them.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let (path, rules) = bytes.split_at(bytes.len().min(64));
    for is_directory in [false, true] {
        let ignored = bay_diff::ignored_by(rules, path, is_directory);
        // A last rule that includes everything decides.
        let again = [rules, b"\n!**\n"].concat();
        assert!(!bay_diff::ignored_by(&again, path, is_directory), "{ignored}");
    }
});
