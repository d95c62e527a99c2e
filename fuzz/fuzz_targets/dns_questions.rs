//! DNS messages of any content: answered under their own id with little more than they had, or not at all.
#![no_main]

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bay_gateway::{
    Caller, Decider, Ended, Known, LookUp, Names, Pools, RecordId, Refused, Ruling, Sight, dns,
};
use bay_policy::{CanonicalRequest, CompiledPolicy, Decision, Host, Layers, Route, decide, route};
use jiff::Timestamp;
use libfuzzer_sys::fuzz_target;

/// Answers every look-up and allows nothing.
struct Everything;

fn closed() -> CompiledPolicy {
    CompiledPolicy::new(Layers::default())
}

#[async_trait::async_trait]
impl Decider for Everything {
    fn attribute(&self, _: SocketAddr, _: SocketAddr) -> Known {
        Arc::new(())
    }
    fn look_up(&self, _: &Host) -> LookUp {
        LookUp::Answer
    }
    fn looked_up(&self, _: SocketAddr, _: &str, _: &str, _: LookUp, _: bool) -> bool {
        true
    }
    fn route(&self, host: &Host, port: u16) -> Route {
        route(&closed(), host, port, Timestamp::UNIX_EPOCH)
    }
    async fn decide(&self, _: &Caller, request: &CanonicalRequest, _: &mut Sight<'_>) -> Ruling {
        let decision = decide(&closed(), request, Timestamp::UNIX_EPOCH);
        Ruling { id: RecordId(String::new()), decision, explanation: None, waiting: None }
    }
    fn review(&self, _: &RecordId, request: &CanonicalRequest) -> Decision {
        decide(&closed(), request, Timestamp::UNIX_EPOCH)
    }
    async fn refused(&self, _: &Caller, _: &Refused<'_>) -> RecordId {
        RecordId(String::new())
    }
    fn ended(&self, _: &RecordId, _: &Ended) {}
}

fuzz_target!(|question: &[u8]| {
    let names = Mutex::new(Names::new(Pools::default()));
    let peer = SocketAddr::from(([192, 0, 2, 1], 53));
    if let Some(answer) = dns::answer(question, peer, &Everything, &names) {
        assert_eq!(answer[..2], question[..2]);
        assert!(answer.len() <= question.len() + 64);
    }
});
