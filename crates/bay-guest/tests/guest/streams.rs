//! Output, input and terminals.

use std::time::Duration;

use bay_types::exec::{EndReason, ExecSpec, TtySize};
use bay_types::frame::{Frame, INPUT_WINDOW};
use bay_types::{ErrorCode, InputId};
use http::Method;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::harness::{Guest, Options, PATIENCE, json, sh, spec, tty};

fn with_input(argv: &[&str]) -> ExecSpec {
    ExecSpec { stdin: true, ..spec(argv) }
}

#[tokio::test]
async fn input_reaches_the_command_and_ends_on_request() {
    let guest = Guest::start();
    let spec = with_input(&["cat"]);
    let mut attached = guest.attach(spec.id, Some(&spec), 0).await;
    attached.send(Frame::Stdin(b"hello\n".to_vec())).await;
    attached.until("hello\n").await;
    attached.send(Frame::Stdin(b"world\n".to_vec())).await;
    attached.send(Frame::StdinEof).await;
    let got = attached.collect().await;
    assert_eq!((got.out(), got.code()), ("world\n", Some(0)));
}

#[tokio::test]
async fn without_input_standard_input_is_empty() {
    let guest = Guest::start();
    let spec = spec(&["cat"]);
    let mut attached = guest.attach(spec.id, Some(&spec), 0).await;
    attached.send(Frame::Stdin(b"nobody reads this".to_vec())).await;
    let got = attached.collect().await;
    assert_eq!((got.out(), got.code()), ("", Some(0)));
}

#[tokio::test]
async fn megabytes_of_input_pass_through_a_slow_command() {
    let guest = Guest::start();
    let spec = with_input(&["sh", "-c", "sleep 0.3; md5sum"]);
    let attached = guest.attach(spec.id, Some(&spec), 0).await;
    let (mut from, mut to) = attached.stream.into_split();
    let data: Vec<u8> = (0..8_000_000_u32).map(|n| (n % 251) as u8).collect();
    let send = async {
        to.write_all(&Frame::Stdin(data).to_bytes()).await.unwrap();
        to.write_all(&Frame::StdinEof.to_bytes()).await.unwrap();
    };
    let receive = async {
        let mut bytes = Vec::new();
        from.read_to_end(&mut bytes).await.unwrap();
        bytes
    };
    let ((), bytes) = tokio::time::timeout(PATIENCE, async { tokio::join!(send, receive) }).await.unwrap();
    let (first, _) = Frame::decode(&bytes).unwrap().unwrap();
    assert_eq!(first, Frame::Stdout(b"fcfa12c338c64ebdc71311f5b3acb077  -\n".to_vec()));
}

#[tokio::test]
async fn input_for_a_command_that_closed_it_is_dropped() {
    let guest = Guest::start();
    let spec = with_input(&["sh", "-c", "exec <&-; echo closed; sleep 0.2; exit 5"]);
    let mut attached = guest.attach(spec.id, Some(&spec), 0).await;
    attached.until("closed").await;
    for _ in 0..20 {
        attached.send(Frame::Stdin(vec![b'x'; 100_000])).await;
    }
    assert_eq!(attached.collect().await.code(), Some(5));
}

#[tokio::test]
async fn a_client_that_disconnects_loses_nothing_and_can_reconnect_with_input() {
    let guest = Guest::start();
    let spec = with_input(&["sh", "-c", "echo one; read line; echo got $line; read line; echo got $line"]);
    let mut attached = guest.attach(spec.id, Some(&spec), 0).await;
    attached.until("one\n").await;
    attached.send(Frame::Stdin(b"first\n".to_vec())).await;
    drop(attached);
    let mut again = guest.attach(spec.id, None, 4).await;
    assert_eq!(again.until("got first\n").await, "got first\n");
    again.send(Frame::Stdin(b"second\n".to_vec())).await;
    let got = again.collect().await;
    assert_eq!((got.out(), got.code()), ("got second\n", Some(0)));
    assert_eq!(guest.output(spec.id, 0, false).await.out(), "one\ngot first\ngot second\n");
}

/// Cuts a connection with frames in transit in both directions, each time at another byte.
#[tokio::test]
async fn named_input_reaches_the_command_once_however_often_the_connection_is_cut() {
    let guest = Guest::start();
    let spec = with_input(&["cat"]);
    let input = InputId::generate();
    let sent: Vec<u8> = (0..60_000_u32).flat_map(|number| format!("{number}\n").into_bytes()).collect();
    let (mut attached, mut at) = guest.attach_with(input, spec.id, Some(&spec)).await;
    assert_eq!(at, 0);
    let mut cuts = 0;
    while at < sent.len() as u64 {
        let from = usize::try_from(at).unwrap();
        let mut wire = Vec::new();
        for (number, part) in sent[from..].chunks(700).take(40).enumerate() {
            Frame::Input(at + number as u64 * 700, part.to_vec()).encode(&mut wire);
        }
        cuts += 1;
        let whole = wire.len().saturating_sub((cuts * 37) % 1000);
        attached.stream.write_all(&wire[..whole]).await.unwrap();
        drop(attached);
        let before = at;
        (attached, at) = guest.attach_with(input, spec.id, None).await;
        assert!(at >= before);
        // The guest reports only complete frames; it may still be reading others.
        attached.send(Frame::Input(before, sent[from..usize::try_from(at).unwrap()].to_vec())).await;
    }
    assert!(cuts > 5, "{cuts} cuts");
    attached.send(Frame::InputEnd(sent.len() as u64)).await;
    attached.send(Frame::InputEnd(sent.len() as u64)).await;
    let mut taken = 0;
    let mut collected = Vec::new();
    while let Some(frame) = attached.next().await {
        match frame {
            Frame::Stdout(bytes) => collected.extend(bytes),
            Frame::Taken(offset) => {
                assert!(offset >= taken, "{offset} after {taken}");
                taken = offset;
            }
            Frame::Exit(exit, _) => assert_eq!(exit.code, Some(0)),
            other => panic!("{other:?}"),
        }
    }
    assert!(collected == sent, "{} bytes came of {}", collected.len(), sent.len());
}

#[tokio::test]
async fn two_named_inputs_and_one_without_a_name_are_kept_apart() {
    let guest = Guest::start();
    let spec = with_input(&["cat"]);
    let (mut first, _) = guest.attach_with(InputId::generate(), spec.id, Some(&spec)).await;
    first.send(Frame::Input(0, b"one\n".to_vec())).await;
    first.until_output("one\n").await;
    let (mut second, received) = guest.attach_with(InputId::generate(), spec.id, None).await;
    assert_eq!(received, 0);
    second.send(Frame::Input(0, b"two\n".to_vec())).await;
    second.until_output("one\ntwo\n").await;
    let mut plain = guest.attach(spec.id, None, 0).await;
    plain.send(Frame::Stdin(b"three\n".to_vec())).await;
    plain.send(Frame::StdinEof).await;
    assert_eq!(plain.collect().await.out(), "one\ntwo\nthree\n");
}

/// A client may send a whole window of input. The guest reads it, and so notices that the connection was cut.
#[tokio::test]
async fn a_cut_is_noticed_while_the_command_reads_nothing() {
    let guest = Guest::start();
    let spec = with_input(&["sh", "-c", "echo ready; read line; exec cat > /dev/null"]);
    let input = InputId::generate();
    let (mut attached, _) = guest.attach_with(input, spec.id, Some(&spec)).await;
    attached.until_output("ready\n").await;
    let chunk = vec![b'x'; 64 << 10];
    let mut at = 0;
    while at < INPUT_WINDOW {
        attached.send(Frame::Input(at, chunk.clone())).await;
        at += chunk.len() as u64;
    }
    attached.stream.shutdown().await.unwrap();
    // The guest closes its side when it has read to the end.
    while attached.next().await.is_some() {}
    let (mut again, received) = guest.attach_with(input, spec.id, None).await;
    assert_eq!(received, INPUT_WINDOW);
    again.send(Frame::Signal(9)).await;
    while again.next().await.is_some() {}
}

#[tokio::test]
async fn several_clients_see_the_same() {
    let guest = Guest::start();
    let spec = with_input(&["cat"]);
    let mut first = guest.attach(spec.id, Some(&spec), 0).await;
    let second = guest.attach(spec.id, Some(&spec), 0).await;
    first.send(Frame::Stdin(b"shared".to_vec())).await;
    first.send(Frame::StdinEof).await;
    let (first, second) = tokio::join!(first.collect(), second.collect());
    assert_eq!((first.out(), second.out()), ("shared", "shared"));
    assert_eq!(first.exit, second.exit);
}

#[tokio::test]
async fn output_can_be_replayed_from_any_byte_while_running_and_after() {
    let guest = Guest::start();
    let spec = sh("printf abc; sleep 0.2; printf DEF >&2; sleep 0.2; printf ghi; exec sleep 1000");
    let mut attached = guest.attach(spec.id, Some(&spec), 0).await;
    attached.until("ghi").await;
    let part = guest.output(spec.id, 4, false).await;
    assert_eq!((part.out(), part.err(), part.exit), ("ghi", "EF", None));
    let beyond = format!("/v1/execs/{}/output?since=10", spec.id);
    assert_eq!(guest.refused(Method::GET, &beyond, vec![]).await.code, ErrorCode::InvalidInput);
    guest.signal(spec.id, 9, true).await;
    let rest = attached.collect().await;
    assert_eq!(rest.exit.unwrap().reason, EndReason::Killed);
    let after = guest.attach(spec.id, None, 2).await.collect().await;
    assert_eq!((after.out(), after.err(), after.exit), ("cghi", "DEF", rest.exit));
}

#[tokio::test]
async fn a_background_child_does_not_hold_up_the_end_and_its_output_is_kept() {
    let guest = Guest::start();
    let go = guest.dir().join("go");
    let spec = sh(&format!("(while [ ! -e {} ]; do sleep 0.05; done; echo late) & echo hi", go.display()));
    let got = guest.run(&spec).await;
    assert_eq!((got.out(), got.code()), ("hi\n", Some(0)));
    std::fs::write(&go, "").unwrap();
    guest
        .eventually(async || (guest.output(spec.id, 0, false).await.out() == "hi\nlate\n").then_some(()))
        .await;
    assert_eq!(guest.status(spec.id).await.output_bytes, 8);
}

#[tokio::test]
async fn a_flood_from_a_background_child_does_not_hold_up_the_end() {
    let guest = Guest::start();
    let spec = sh("yes & echo started >&2");
    let got = guest.run(&spec).await;
    assert_eq!(got.code(), Some(0));
    // What is left of it can be ended, and deleted.
    guest.signal(spec.id, 9, true).await;
    guest.ok(Method::DELETE, &format!("/v1/execs/{}", spec.id), vec![]).await;
}

#[tokio::test]
async fn a_slow_reader_of_100_mb_blocks_nobody_and_loses_nothing() {
    let guest = Guest::start();
    let spec = sh("head -c 100000000 /dev/zero; echo end >&2");
    let mut attached = guest.attach(spec.id, Some(&spec), 0).await;
    // Nothing is read until the command has ended.
    guest.eventually(async || guest.status(spec.id).await.exit).await;
    let mut total = 0;
    loop {
        match attached.next().await.unwrap() {
            Frame::Stdout(bytes) => total += bytes.len(),
            Frame::Stderr(bytes) => assert_eq!(bytes, b"end\n"),
            Frame::Exit(exit, _) => break assert_eq!(exit.code, Some(0)),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(total, 100_000_000);
}

#[tokio::test]
async fn output_beyond_the_bound_is_dropped_from_the_front_and_the_reader_gets_a_gap() {
    let guest = Guest::with(&Options { bounds: Some((1 << 20, 1 << 16, 100)), ..Options::default() });
    let spec = sh("head -c 5000000 /dev/zero | tr '\\0' x; echo; echo end");
    let attached = guest.attach(spec.id, Some(&spec), 0).await;
    guest.eventually(async || guest.status(spec.id).await.exit).await;
    let late = attached.collect().await;
    assert_eq!(late.gap + late.stdout.len() as u64, 5_000_005);
    assert!(late.stdout.ends_with(b"x\nend\n"));
    let status = guest.status(spec.id).await;
    assert_eq!(status.output_bytes, 5_000_005);
    let again = guest.output(spec.id, 0, true).await;
    assert_eq!(again.gap, status.output_start);
    assert!(again.stdout.len() <= 1 << 20 && again.stdout.len() > (1 << 20) - (1 << 17));
}

#[tokio::test]
async fn a_terminal_has_a_size_a_user_and_an_end_of_input() {
    let guest = Guest::start();
    let spec = tty(
        "tty; stty size; echo $TERM; trap 'stty size; seen=1' WINCH; echo ready; while [ -z \"$seen\" ]; do sleep 0.05; done; read line; echo read $line; cat; echo bye",
    );
    let mut attached = guest.attach(spec.id, Some(&spec), 0).await;
    let first = attached.until("ready").await;
    assert!(first.contains("/dev/pts/"), "{first}");
    assert!(first.contains("30 100") && first.contains("xterm-256color"), "{first}");
    attached.send(Frame::Resize(TtySize { cols: 55, rows: 11 })).await;
    attached.until("11 55").await;
    attached.send(Frame::Stdin(b"typed\n".to_vec())).await;
    attached.until("read typed").await;
    attached.send(Frame::StdinEof).await;
    let got = attached.collect().await;
    assert!(got.out().contains("bye"), "{got:?}");
    assert_eq!(got.code(), Some(0));
}

#[tokio::test]
async fn control_c_and_signals_reach_the_foreground_of_a_terminal() {
    let guest = Guest::start();
    for by_frame in [false, true] {
        let spec = tty("set -m; trap : INT; echo ready; sleep 1000; echo code $?; exit 9");
        let mut attached = guest.attach(spec.id, Some(&spec), 0).await;
        attached.until("ready").await;
        // The shell makes the sleep a foreground group of its own. Wait for that.
        guest
            .eventually(async || {
                let pid = guest.status(spec.id).await.pid;
                let stat = guest.sh(&format!("cut -d' ' -f8 /proc/{pid}/stat")).await;
                (stat.out().trim() != pid.to_string()).then_some(())
            })
            .await;
        if by_frame {
            attached.send(Frame::Signal(2)).await;
        } else {
            attached.send(Frame::Stdin(vec![3])).await;
        }
        let got = attached.collect().await;
        assert!(got.out().contains("code 130"), "{:?}", got.out());
        assert_eq!(got.code(), Some(9));
    }
}

#[tokio::test]
async fn all_output_of_a_short_terminal_command_arrives_before_its_end() {
    let guest = Guest::start();
    for _ in 0..20 {
        let got = guest.run(&tty("seq 1 2000")).await;
        assert!(
            got.out().ends_with("1999\r\n2000\r\n"),
            "{:?}",
            &got.out()[got.out().len().saturating_sub(40)..]
        );
    }
}

#[tokio::test]
async fn a_malformed_frame_ends_that_connection_only() {
    let guest = Guest::start();
    let spec = with_input(&["cat"]);
    let mut good = guest.attach(spec.id, Some(&spec), 0).await;
    for garbage in
        [&[99_u8, 0, 0, 0, 0][..], &[0, 255, 255, 255, 255], &[3, 0, 0, 0, 1, b'x'], &[16, 0, 0, 0, 0]]
    {
        let mut bad = guest.attach(spec.id, None, 0).await;
        bad.stream.write_all(garbage).await.unwrap();
        let got = bad.collect().await;
        assert_eq!(got.error.unwrap().code, ErrorCode::InvalidInput);
    }
    good.send(Frame::Stdin(b"fine".to_vec())).await;
    good.send(Frame::StdinEof).await;
    assert_eq!(good.collect().await.out(), "fine");
}

#[tokio::test]
async fn garbage_instead_of_http_ends_that_connection_only() {
    let guest = Guest::start();
    for garbage in [
        &b"\0\0\0\0\r\n\r\n"[..],
        b"GET",
        b"PUT /v1/execs/x HTTP/1.1\r\ncontent-length: 99999999999\r\n\r\n{",
    ] {
        let mut stream = tokio::net::UnixStream::connect(guest.dir().join("sock")).await.unwrap();
        stream.write_all(garbage).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = Vec::new();
        let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await.unwrap();
    }
    let long = guest.refused(Method::PUT, &format!("/v1/execs/{}", sh("true").id), vec![b' '; 8 << 20]).await;
    assert_eq!(long.code, ErrorCode::InvalidInput);
    assert_eq!(guest.sh("echo fine").await.out(), "fine\n");
}

#[tokio::test]
async fn attach_without_upgrade_or_without_an_exec_is_refused() {
    let guest = Guest::start();
    let spec = sh("true");
    let path = format!("/v1/execs/{}/attach", spec.id);
    assert_eq!(guest.refused(Method::POST, &path, json(&spec)).await.code, ErrorCode::InvalidInput);
    assert_eq!(
        guest.refused(Method::GET, &format!("/v1/execs/{}/output", spec.id), vec![]).await.code,
        ErrorCode::ExecNotFound
    );
}

/// Run by hand: `cargo test -p bay-guest --test guest throughput -- --ignored --nocapture`.
#[tokio::test]
#[ignore = "it measures"]
async fn throughput_of_output_to_a_local_reader() {
    let guest = Guest::start();
    for round in 0..3 {
        let spec = sh("exec dd if=/dev/zero bs=1M count=2048 2>/dev/null");
        let started = std::time::Instant::now();
        let mut attached = guest.attach(spec.id, Some(&spec), 0).await;
        let (mut total, mut buffer) = (0_usize, vec![0; 1 << 20]);
        let gap = loop {
            match tokio::time::timeout(Duration::from_secs(60), attached.stream.read(&mut buffer))
                .await
                .unwrap()
                .unwrap()
            {
                0 => break 0,
                n => total += n,
            }
        };
        let seconds = started.elapsed().as_secs_f64();
        println!(
            "round {round}: {total} bytes in {seconds:.2} s = {:.0} MB/s, gap {gap}",
            total as f64 / seconds / 1e6
        );
    }
}

/// Run by hand, like `throughput_of_output_to_a_local_reader`.
#[tokio::test]
#[ignore = "it measures"]
async fn latency_of_a_short_command() {
    let guest = Guest::start();
    let mut times: Vec<Duration> = Vec::new();
    for _ in 0..200 {
        let started = std::time::Instant::now();
        assert_eq!(guest.run(&spec(&["/bin/true"])).await.code(), Some(0));
        times.push(started.elapsed());
    }
    times.sort_unstable();
    println!("median {:?}, 95th percentile {:?}", times[100], times[190]);
}
