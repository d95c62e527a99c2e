use proptest::prelude::*;

use super::*;

fn counts(output: &str) -> Option<TestCounts> {
    let mut reader = Reader::default();
    reader.feed(Stream::Out, output.as_bytes());
    reader.finish()
}

fn tests(passed: u64, failed: u64, skipped: u64) -> Option<TestCounts> {
    Some(TestCounts { passed, failed, skipped, of: Of::Tests })
}

#[test]
fn every_binary_of_cargo_test_is_added_up() {
    let output = "\
     Running unittests src/lib.rs (target/debug/deps/tool-5f1c)

running 3 tests
test a::adds ... ok
test a::takes_away ... FAILED
test a::waits ... ignored

test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s

   Doc-tests tool

running 2 tests

test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 4 filtered out; finished in 0.21s
";
    assert_eq!(counts(output), tests(3, 1, 1));
}

#[test]
fn nextest_has_one_line_with_remarks() {
    let output = "     Summary [   0.310s] 25 tests run: 22 passed (1 slow, 1 leaky), 1 failed, 2 timed out, 3 skipped\n        FAIL [   0.005s] tool tests::x\n";
    assert_eq!(counts(output), tests(22, 3, 3));
    let cut = "\u{1b}[32;1m     Summary\u{1b}[0m [   1.002s] \u{1b}[1m5\u{1b}[0m/\u{1b}[1m25\u{1b}[0m tests run: \u{1b}[1m4\u{1b}[0m \u{1b}[32;1mpassed\u{1b}[0m, \u{1b}[1m1\u{1b}[0m \u{1b}[31;1mfailed\u{1b}[0m, \u{1b}[1m0\u{1b}[0m skipped\n";
    assert_eq!(counts(cut), tests(4, 1, 0));
}

#[test]
fn pytest_summaries_are_parsed_with_and_without_a_frame() {
    let output = "=========================== short test summary info ============================\n\
FAILED tests/test_a.py::test_two - assert 1 == 2\n\
============== 1 failed, 3 passed, 2 skipped, 1 warning in 0.12s ===============\n";
    assert_eq!(counts(output), tests(3, 1, 2));
    assert_eq!(counts("....\n4 passed in 0.01s\n"), tests(4, 0, 0));
    assert_eq!(counts("1 error in 0.08s\n"), tests(0, 1, 0));
    assert_eq!(
        counts("== 2 passed, 1 xfailed, 1 xpassed, 3 deselected in 63.20s (0:01:03) ==\n"),
        tests(3, 0, 1)
    );
    assert_eq!(counts("no tests ran in 0.01s"), tests(0, 0, 0));
}

#[test]
fn jest_and_vitest() {
    let output = "\nTest Suites: 1 failed, 1 passed, 2 total\nTests:       1 failed, 1 todo, 5 passed, 7 total\nSnapshots:   0 total\nTime:        0.5 s\n";
    assert_eq!(counts(output), tests(5, 1, 1));
    let output = "\n \u{1b}[2m Test Files \u{1b}[22m \u{1b}[1m\u{1b}[31m1 failed\u{1b}[39m\u{1b}[22m\u{1b}[2m | \u{1b}[22m\u{1b}[1m\u{1b}[32m2 passed\u{1b}[39m\u{1b}[22m\u{1b}[90m (3)\u{1b}[39m\n\u{1b}[2m      Tests \u{1b}[22m \u{1b}[1m\u{1b}[31m1 failed\u{1b}[39m\u{1b}[22m\u{1b}[2m | \u{1b}[22m\u{1b}[1m\u{1b}[32m6 passed\u{1b}[39m\u{1b}[22m\u{1b}[2m | \u{1b}[22m\u{1b}[33m2 skipped\u{1b}[39m\u{1b}[90m (9)\u{1b}[39m\n";
    assert_eq!(counts(output), tests(6, 1, 2));
    assert_eq!(counts("      Tests  3 passed (3)\n"), tests(3, 0, 0));
}

#[test]
fn mocha_prints_each_count_on_its_own_line() {
    let output = "  math\n    ✔ adds\n    1) takes away\n\n\n  5 passing (12ms)\n  2 pending\n  1 failing\n\n  1) math\n";
    assert_eq!(counts(output), tests(5, 1, 2));
}

#[test]
fn go_output_gives_tests_if_it_names_them_and_packages_otherwise() {
    let verbose = "=== RUN   TestAdd\n--- PASS: TestAdd (0.00s)\n=== RUN   TestSub\n=== RUN   TestSub/zero\n    sub_test.go:9: no\n--- FAIL: TestSub (0.00s)\n    --- FAIL: TestSub/zero (0.00s)\n=== RUN   TestLater\n--- SKIP: TestLater (0.00s)\nFAIL\nFAIL\texample.org/m/calc\t0.002s\nok  \texample.org/m/text\t0.001s\nFAIL\n";
    assert_eq!(counts(verbose), tests(1, 2, 1));
    let plain = "--- FAIL: TestSub (0.00s)\n    sub_test.go:9: no\nFAIL\nFAIL\texample.org/m/calc\t0.002s\nok  \texample.org/m/text\t(cached)\nok  \texample.org/m/more\t1.201s\n?   \texample.org/m\t[no test files]\nFAIL\texample.org/m/odd [build failed]\nFAIL\n";
    assert_eq!(counts(plain), Some(TestCounts { passed: 2, failed: 2, skipped: 0, of: Of::Packages }));
}

#[test]
fn the_runners_that_come_with_python_and_node() {
    let output = "..F.s\n----------------------------------------------------------------------\nRan 5 tests in 0.003s\n\nFAILED (failures=1, skipped=1)\n";
    assert_eq!(counts(output), tests(3, 1, 1));
    assert_eq!(counts("Ran 1 test in 0.000s\n\nOK\n"), tests(1, 0, 0));
    assert_eq!(counts("OK\n"), None);
    let output = "ok 1 - adds\n1..3\n# tests 3\n# suites 0\n# pass 2\n# fail 1\n# cancelled 0\n# skipped 0\n# todo 0\n# duration_ms 61.2\n";
    assert_eq!(counts(output), tests(2, 1, 0));
}

#[test]
fn several_runners_in_one_command_are_added_up() {
    let output = "test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.0s\n3 passed in 0.1s\n";
    assert_eq!(counts(output), tests(5, 0, 0));
}

#[test]
fn ordinary_output_has_no_counts() {
    for output in [
        "",
        "hello\n",
        "Tests: 5, Assertions: 9, Failures: 1.\n",
        "all 5 passed in review\n",
        "5 passengers in 3 seats\n",
        "ok 1 - tap\n",
        "test result: unknown\n",
        "Summary [x] of the work\n",
        "--- a/file\n+++ b/file\n",
        "# pass the salt\n",
        "1 failing grade\n",
    ] {
        assert_eq!(counts(output), None, "{output:?}");
    }
}

#[test]
fn a_line_too_long_to_be_a_summary_costs_no_memory() {
    let mut reader = Reader::default();
    for _ in 0..1000 {
        reader.feed(Stream::Out, &[b'x'; 1000]);
        assert!(reader.out.begun.len() <= MAX_LINE);
    }
    reader.feed(Stream::Out, b" 3 passed in 0.1s\n4 passed in 0.1s\n");
    assert_eq!(reader.finish(), tests(4, 0, 0));
}

#[test]
fn the_streams_do_not_mix_and_pieces_may_be_cut_anywhere() {
    let mut reader = Reader::default();
    for byte in b"4 passed in 0.1s\n" {
        reader.feed(Stream::Out, &[*byte]);
        reader.feed(Stream::Err, b".");
    }
    assert_eq!(reader.finish(), tests(4, 0, 0));
}

#[test]
fn absurd_numbers_do_not_overflow() {
    let most = u64::MAX;
    let line = format!("{most} passed in 1s\n");
    assert_eq!(counts(&format!("{line}{line}")), tests(most, 0, 0));
    assert_eq!(counts("99999999999999999999999 passed in 1s\n"), None);
}

proptest! {
    #[test]
    fn no_output_makes_the_counts_panic(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..20)) {
        let mut reader = Reader::default();
        for piece in pieces {
            reader.feed(Stream::Out, &piece);
            reader.feed(Stream::Err, &piece);
        }
        let _ = reader.finish();
    }

    #[test]
    fn no_text_like_a_summary_makes_the_counts_panic(
        words in prop::collection::vec(prop::sample::select(vec![
            "test result: ", "ok. ", "Summary [", "] ", " run: ", "Tests", ":", " ", "1", "999999999999999999999", " passed",
            " failed", ",", ";", "|", "(", ")", " in ", "0.1s", "--- ", "PASS", "FAIL", "\t", "ok", "Ran ", "tests in ", "OK",
            "FAILED", " (", "failures=", "# ", "ℹ ", "pass", "\n", "\r", "\u{1b}[", "\u{1b}]", "m", "ü", "=",
        ]), 0..40),
    ) {
        let _ = counts(&words.concat());
    }
}
