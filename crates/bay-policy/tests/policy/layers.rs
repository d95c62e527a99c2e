//! Layers narrow and never widen. Grants answer asks and override no deny.

use std::net::IpAddr;

use bay_policy::{Cause, CompiledPolicy, Layer, Layers, Outcome, check_address, decide};

use super::{layer, now, outcome, request};

fn stacked(host: Option<&str>, project: Option<&str>, bay: Option<&str>) -> CompiledPolicy {
    CompiledPolicy::new(Layers {
        host: host.map(|text| layer(Layer::Host, text)),
        project: project.map(|text| layer(Layer::Project, text)),
        bay: bay.map(|text| layer(Layer::Bay, text)),
    })
}

const ALLOW: &str = "[[rule]]\nid = \"allow\"\noutcome = \"allow\"\nhost = \"ok.test\"\n";
const ASK: &str = "[[rule]]\nid = \"ask\"\noutcome = \"ask\"\nhost = \"ok.test\"\n";
const DENY: &str = "[[rule]]\nid = \"deny\"\noutcome = \"deny\"\nhost = \"ok.test\"\n";
const INHERIT: &str = "otherwise = \"inherit\"\n";
const LINE: &str = "GET https://ok.test/";

#[test]
fn the_most_restrictive_layer_wins() {
    let texts = [ALLOW, ASK, DENY, ""];
    let rank = |text: &str| match text {
        ALLOW => 0,
        ASK => 1,
        _ => 2,
    };
    for host in texts {
        for project in texts {
            for bay in texts {
                let worst = rank(host).max(rank(project)).max(rank(bay));
                let policy = stacked(Some(host), Some(project), Some(bay));
                assert_eq!(outcome(&policy, LINE), ["allow", "ask", "deny"][worst], "{host} {project} {bay}");
            }
        }
    }
}

#[test]
fn a_missing_layer_has_no_effect_and_an_empty_one_denies() {
    assert_eq!(outcome(&stacked(None, None, Some(ALLOW)), LINE), "allow");
    assert_eq!(outcome(&stacked(Some(ALLOW), None, None), LINE), "allow");
    assert_eq!(outcome(&stacked(Some(ALLOW), Some(""), None), LINE), "deny");
    assert_eq!(outcome(&stacked(Some(ALLOW), Some(INHERIT), None), LINE), "allow");
    let takes_away = format!("{INHERIT}{DENY}");
    assert_eq!(outcome(&stacked(Some(ALLOW), Some(&takes_away), Some(INHERIT)), LINE), "deny");
}

#[test]
fn no_later_layer_widens_an_earlier_one() {
    let everything = "[[rule]]\noutcome = \"allow\"\nhost = [\"*\", \"0.0.0.0/0\"]\nmethod = \"*\"\n";
    let policy = stacked(Some(ALLOW), Some(everything), Some(everything));
    assert_eq!(outcome(&policy, LINE), "allow");
    for line in
        ["POST https://ok.test/", "GET https://other.test/", "GET https://192.0.2.1/", "tls://ok.test"]
    {
        assert_eq!(outcome(&policy, line), "deny", "{line}");
    }
    // If every layer inherits, there is nothing to inherit.
    assert_eq!(outcome(&stacked(None, Some(INHERIT), Some(INHERIT)), LINE), "deny");
    let decision = decide(&stacked(None, None, Some(INHERIT)), &request(LINE), now());
    assert_eq!(decision.cause, Cause::NoPolicy);
}

#[test]
fn ingress_is_open_only_if_no_layer_closes_it() {
    assert!(stacked(Some(""), None, Some("")).ingress());
    assert!(!stacked(Some("ingress = \"allow\""), None, Some("ingress = \"deny\"")).ingress());
    assert!(!stacked(Some("ingress = \"deny\""), None, Some("ingress = \"allow\"")).ingress());
}

fn granted(rest: &str, until: &str) -> String {
    format!("{rest}\n[[grant]]\nid = \"once\"\nhost = \"ok.test\"\nexpires = {until}\n")
}

#[test]
fn a_grant_answers_an_ask_in_any_layer_until_it_expires() {
    for (host, bay) in [(ASK, ALLOW), (ALLOW, ASK), (ASK, ASK), ("otherwise = \"ask\"", ALLOW)] {
        let policy = stacked(Some(host), None, Some(&granted(bay, "2026-11-16T12:30:00Z")));
        let decision = decide(&policy, &request(LINE), now());
        assert_eq!(decision.outcome, Outcome::Allow);
        assert!(matches!(&decision.cause, Cause::Grant { grant } if grant.id == "once"));
        let later = "2026-11-16T12:30:00Z".parse().unwrap();
        assert_eq!(decide(&policy, &request(LINE), later).outcome, Outcome::Ask);
        assert_eq!(outcome(&policy, "POST https://ok.test/"), "deny");
    }
}

#[test]
fn a_grant_replaces_a_missing_rule_except_in_the_hosts_layer() {
    let bay = granted("", "2026-11-16T12:30:00Z");
    assert_eq!(outcome(&stacked(None, None, Some(&bay)), LINE), "allow");
    assert_eq!(outcome(&stacked(Some(ALLOW), Some(""), Some(&bay)), LINE), "allow");
    assert_eq!(outcome(&stacked(Some(""), None, Some(&bay)), LINE), "deny");
    assert_eq!(
        outcome(&stacked(Some(""), None, Some(&granted(ALLOW, "2026-11-16T12:30:00Z"))), LINE),
        "deny"
    );
}

#[test]
fn a_grant_overrides_no_deny() {
    let bay = granted(DENY, "2026-11-16T12:30:00Z");
    assert_eq!(outcome(&stacked(None, None, Some(&bay)), LINE), "deny");
    let bay = granted(ALLOW, "2026-11-16T12:30:00Z");
    assert_eq!(outcome(&stacked(Some(ALLOW), Some(DENY), Some(&bay)), LINE), "deny");
}

#[test]
fn every_layer_must_name_an_address_that_is_not_public() {
    let named = "[[rule]]\noutcome = \"allow\"\nhost = \"ok.test\"\naddress = \"10.0.0.5\"\n";
    let address: IpAddr = "10.0.0.5".parse().unwrap();
    for (host, bay, fits) in
        [(named, named, true), (ALLOW, named, false), (named, ALLOW, false), (named, INHERIT, true)]
    {
        let policy = stacked(Some(host), None, Some(bay));
        let decision = decide(&policy, &request(LINE), now());
        assert_eq!(check_address(&decision, &request(LINE), address, &[]).is_ok(), fits, "{host} {bay}");
    }
    let bay = "[[grant]]\nhost = \"ok.test\"\naddress = \"10.0.0.5\"\nexpires = 2026-11-16T12:30:00Z";
    let decision = decide(&stacked(None, None, Some(bay)), &request(LINE), now());
    assert!(check_address(&decision, &request(LINE), address, &[]).is_ok());
    let decision = decide(&stacked(Some(ASK), None, Some(bay)), &request(LINE), now());
    assert_eq!(decision.outcome, Outcome::Allow);
    assert!(check_address(&decision, &request(LINE), address, &[]).is_err());
}
