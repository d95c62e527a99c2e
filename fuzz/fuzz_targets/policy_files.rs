//! Policy files and settings of tools, of any content: read or told as wrong at a place that exists, and what was read
//! is written, read again, explained and looked over without a panic.
#![no_main]

use bay_policy::write::rule_to_toml;
use bay_policy::{
    CanonicalRequest, CompiledPolicy, Layer, Layers, Place, Places, decide, diff, explain, learn,
    lint, parse, show, tool_settings,
};
use jiff::Timestamp;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    for read in [
        tool_settings::pip_conf,
        tool_settings::npmrc,
        tool_settings::cargo_config,
        tool_settings::apt_list,
        tool_settings::apt_sources,
        tool_settings::git_config,
    ] {
        for found in read(text) {
            assert_eq!(Place::parse(&found.place.to_string()).expect("a place is at rest"), found.place);
        }
    }
    let now = Timestamp::UNIX_EPOCH;
    let bay = match parse(Layer::Bay, "fuzz", text, &Places::default()) {
        Ok(bay) => bay,
        Err(problems) => {
            let lines = text.split('\n').count();
            assert!(
                problems.0.iter().all(|problem| (1..=lines).contains(&problem.line) && problem.column >= 1)
            );
            return;
        }
    };
    let written: String = bay.rules.iter().map(rule_to_toml).collect();
    let again = parse(Layer::Bay, "fuzz", &written, &Places::default());
    let policy = CompiledPolicy::new(Layers { bay: Some(bay), ..Layers::default() });
    let again = again.unwrap_or_else(|problems| panic!("{problems}\n{written}"));
    for (before, after) in policy.rules().zip(&again.rules) {
        assert_eq!(before.matcher, after.matcher, "{written}");
    }
    let requests: Vec<CanonicalRequest> =
        ["GET https://a.test/x?y=z", "tcp://a.test:22", "tls://a.test", "GET http://10.0.0.1/"]
            .into_iter()
            .map(|line| CanonicalRequest::from_line(line).expect("a request"))
            .collect();
    for request in &requests {
        let decision = decide(&policy, request, now);
        serde_json::to_vec(&explain(&policy, request, &decision, now)).expect("an explanation");
    }
    serde_json::to_vec(&(lint(&policy, now), show(&policy, now), learn(&policy, &requests, Layer::Bay, now)))
        .expect("what was found");
    assert!(diff(&policy, &policy, now).is_empty());
});
