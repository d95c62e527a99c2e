//! NET-DNS-*: the gateway makes the answers itself, and forwards no question.

use hickory_proto::op::{Message, OpCode, ResponseCode};
use hickory_proto::rr::{RData, RecordType};
use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};

use crate::lab::client::{ask, look_up, question};
use crate::lab::{Entry, Lab, POLICY};

#[tokio::test]
async fn a_name_has_one_address_however_it_is_written() {
    let lab = Lab::new(POLICY).await;
    let first = look_up(lab.dns, "ok.test").await.unwrap();
    assert_eq!(look_up(lab.dns, "OK.TeSt.").await, Some(first));
    assert_ne!(look_up(lab.dns, "other.ok.test").await, Some(first));
    let answer = ask(lab.dns, &question("ok.test", RecordType::AAAA).to_vec().unwrap()).await.unwrap();
    assert!(matches!(answer.answers[0].data, RData::AAAA(_)));
    assert_eq!(lab.gateway.names().names, ["ok.test", "other.ok.test"]);
    let new = lab.ledger.entries();
    let new = new.iter().filter(|entry| matches!(entry, Entry::LookedUp { new: true, .. })).count();
    assert_eq!(new, 2);
}

#[tokio::test]
async fn an_address_that_could_not_be_stored_is_not_returned() {
    let lab = Lab::new(POLICY).await;
    let answer = ask(lab.dns, &question("unkept.ok.test", RecordType::A).to_vec().unwrap()).await.unwrap();
    assert_eq!((answer.metadata.response_code, answer.answers.len()), (ResponseCode::ServFail, 0));
}

#[tokio::test]
async fn without_free_addresses_lookups_of_new_names_are_refused_and_recorded() {
    let lab = Lab::new(POLICY).await;
    let pools = bay_gateway::Pools { v4: "198.18.0.0/30".parse().unwrap(), ..bay_gateway::Pools::default() };
    let names = std::sync::Mutex::new(bay_gateway::Names::new(pools));
    let ask = |name: &str| {
        let message = question(name, RecordType::A).to_vec().unwrap();
        let answer = bay_gateway::dns::answer(&message, lab.dns, &*lab.ledger, &names).unwrap();
        Message::from_vec(&answer).unwrap().metadata.response_code
    };
    let asked = ["a.ok.test", "b.ok.test", "c.ok.test", "a.ok.test"].map(ask);
    use ResponseCode::{NoError, ServFail};
    assert_eq!(asked, [NoError, NoError, ServFail, NoError]);
    let refused =
        |entry: &Entry| matches!(entry, Entry::LookedUp { name, answered: false, .. } if name == "c.ok.test");
    assert!(lab.ledger.entries().iter().any(refused));
}

/// Attack: data in the record and in the list of names, encoded as unknown names.
#[tokio::test]
async fn a_flood_of_new_names_is_refused_whatever_is_asked_of_them_and_known_names_are_answered() {
    use bay_gateway::limits::MAX_NEW_NAMES;
    let lab = Lab::new(POLICY).await;
    let names = std::sync::Mutex::new(bay_gateway::Names::new(bay_gateway::Pools::default()));
    let ask = |name: &str, kind: RecordType| {
        let message = question(name, kind).to_vec().unwrap();
        let answer = bay_gateway::dns::answer(&message, lab.dns, &*lab.ledger, &names).unwrap();
        Message::from_vec(&answer).unwrap().metadata.response_code
    };
    assert_eq!(ask("known.ok.test", RecordType::A), ResponseCode::NoError);
    let kinds = [RecordType::A, RecordType::TXT, RecordType::AAAA, RecordType::NULL];
    let asked = (0..3000).map(|at| {
        // Names that are answered, names that are not, and text that is not a name.
        let zone = ["ok.test", "evil.example", "1.1.1"][at % 3];
        ask(&format!("{at}.{zone}"), kinds[at % kinds.len()])
    });
    let refused = asked.filter(|code| *code == ResponseCode::Refused).count();
    assert_eq!(refused, 3000 - (MAX_NEW_NAMES - 1));
    assert_eq!(ask("known.ok.test", RecordType::A), ResponseCode::NoError);
    assert_eq!(ask("0.ok.test", RecordType::AAAA), ResponseCode::NoError);
    assert_eq!(ask("late.ok.test", RecordType::A), ResponseCode::Refused);
    assert!(names.lock().unwrap().saved().names.len() <= MAX_NEW_NAMES);
}

#[tokio::test]
async fn no_dns_query_leaves_and_only_addresses_are_answered() {
    let lab = Lab::new(POLICY).await;
    let kinds = [
        RecordType::TXT,
        RecordType::NULL,
        RecordType::MX,
        RecordType::CNAME,
        RecordType::HTTPS,
        RecordType::SRV,
        RecordType::ANY,
    ];
    for kind in kinds {
        let message = question("c2VjcmV0.ok.test", kind).to_vec().unwrap();
        let answer = ask(lab.dns, &message).await.unwrap();
        assert_eq!(answer.metadata.response_code, ResponseCode::NoError, "{kind}");
        assert!(answer.answers.is_empty(), "{kind}");
        let message = question("c2VjcmV0.evil.example", kind).to_vec().unwrap();
        let answer = ask(lab.dns, &message).await.unwrap();
        assert_eq!(answer.metadata.response_code, ResponseCode::NXDomain, "{kind}");
    }
    assert!(lab.net.resolved.lock().unwrap().is_empty());
    let on_record = |name: &str, answered: bool| {
        let same = |entry: &&Entry| matches!(entry, Entry::LookedUp { name: n, answered: a, .. } if n == name && *a == answered);
        lab.ledger.entries().iter().filter(same).count()
    };
    assert_eq!(on_record("c2vjcmv0.ok.test", true), kinds.len());
    assert_eq!(on_record("c2vjcmv0.evil.example", false), kinds.len());
    assert!(lab.gateway.names().names.is_empty(), "what is not an address takes none");
}

#[tokio::test]
async fn an_invalid_dns_query_gets_an_error_or_no_answer() {
    let lab = Lab::new(POLICY).await;
    assert!(ask(lab.dns, &[1, 2, 3]).await.is_none());
    let mut message = question("ok.test", RecordType::A).to_vec().unwrap();
    let cut = ask(lab.dns, &message[..message.len() - 3]).await.unwrap();
    assert_eq!(cut.metadata.response_code, ResponseCode::FormErr);
    // A compression pointer to itself.
    let mut looping = message[..12].to_vec();
    looping.extend([0xc0, 12, 0, 1, 0, 1]);
    assert_eq!(ask(lab.dns, &looping).await.unwrap().metadata.response_code, ResponseCode::FormErr);
    let mut update = question("ok.test", RecordType::A);
    update.metadata.op_code = OpCode::Update;
    let answer = ask(lab.dns, &update.to_vec().unwrap()).await.unwrap();
    assert_eq!(answer.metadata.response_code, ResponseCode::NotImp);
    // A response must not be answered.
    message[2] |= 0x80;
    assert!(ask(lab.dns, &message).await.is_none());
    for odd in ["127.1", "0x7f000001", "1.2.3.4"] {
        let odd = question(odd, RecordType::A).to_vec().unwrap();
        assert_eq!(ask(lab.dns, &odd).await.unwrap().metadata.response_code, ResponseCode::NXDomain);
    }
    assert!(look_up(lab.dns, "ok.test").await.is_some(), "it goes on");
}

#[tokio::test]
async fn every_dns_answer_has_the_id_of_its_query() {
    let lab = Lab::new(POLICY).await;
    let names = std::sync::Mutex::new(bay_gateway::Names::new(bay_gateway::Pools::default()));
    let good = question("ok.test", RecordType::A).to_vec().unwrap();
    let bent = (any::<Vec<u8>>(), 0..good.len(), any::<u8>(), any::<bool>());
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) };
    proptest!(config, |((noise, at, byte, whole) in bent)| {
        let mut message = good.clone();
        message[at] = byte;
        message.extend(&noise);
        let message = if whole { message } else { noise };
        let answer = bay_gateway::dns::answer(&message, lab.dns, &*lab.ledger, &names);
        if let Some(answer) = answer {
            prop_assert_eq!(&answer[..2], &message[..2]);
            prop_assert!(answer[2] & 0x80 != 0 && answer.len() <= message.len() + 64);
        }
    });
}

#[tokio::test]
async fn dns_over_tcp_answers_one_query_after_the_other() {
    let lab = Lab::new(POLICY).await;
    let mut stream = TcpStream::connect(lab.dns).await.unwrap();
    for name in ["a.test", "b.test"] {
        let message = question(name, RecordType::A).to_vec().unwrap();
        stream.write_u16(message.len() as u16).await.unwrap();
        stream.write_all(&message).await.unwrap();
        let length = stream.read_u16().await.unwrap();
        let mut answer = vec![0; usize::from(length)];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(Message::from_vec(&answer).unwrap().answers.len(), 1);
    }
    stream.write_u16(u16::MAX).await.unwrap();
    assert_eq!(stream.read(&mut [0; 1]).await.unwrap(), 0, "too long a message ends the connection");
}

#[tokio::test]
async fn a_flood_of_dns_queries_is_dropped_and_counted() {
    let lab = Lab::new(POLICY).await;
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let message = question("ok.test", RecordType::A).to_vec().unwrap();
    let flood = async {
        while lab.gateway.dns_dropped() == 0 {
            socket.send_to(&message, lab.dns).await.unwrap();
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(crate::lab::PATIENCE, flood).await.expect("a flood is noticed");
}
