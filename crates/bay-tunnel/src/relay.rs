//! What the processes at both ends do: one TCP connection as pieces.

use std::io;
use std::pin::pin;
use std::time::Duration;

use rustix::net::sockopt;
use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpStream, UnixStream};

use crate::buffer::Buffer;
use crate::hang_up::{hung_up, unless_gone};
use crate::pieces::{Arrived, HEADER, Reader, header};

/// How long a connection is silent before the kernel probes it.
const PROBE_AFTER: Duration = Duration::from_secs(60);
/// Pause between two probes.
const PROBE_EVERY: Duration = Duration::from_secs(15);

/// How a relayed connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Both sides ended what they sent.
    Closed,
    /// One side, or a process between them, went away before that. The TCP connection was reset.
    Cut,
}

/// Relays a TCP connection over `link` until it ends. `early` is what was read from the link before.
pub async fn relay(mut tcp: TcpStream, link: UnixStream, early: &[u8]) -> End {
    // Small messages must not wait for more.
    let _ = tcp.set_nodelay(true);
    let _ = notice_silent_death(&tcp);
    // If this process dies, the kernel closes the connection. A reset then says that it was cut.
    let _ = tcp.set_zero_linger();
    match both_ways(&mut tcp, &link, early).await {
        Ok(()) => {
            // What the other side has not taken yet is delivered after the close.
            let _ = sockopt::set_socket_linger(&tcp, None);
            End::Closed
        }
        Err(_) => End::Cut,
    }
}

/// Lets the kernel probe an idle connection. A side that closed everything looks half-closed until it is probed.
fn notice_silent_death(tcp: &TcpStream) -> rustix::io::Result<()> {
    sockopt::set_tcp_keepidle(tcp, PROBE_AFTER)?;
    sockopt::set_tcp_keepintvl(tcp, PROBE_EVERY)?;
    sockopt::set_socket_keepalive(tcp, true)
}

/// Closes a TCP connection so that the other side sees an error and no complete answer.
pub fn reset(tcp: TcpStream) {
    let _ = tcp.set_zero_linger();
    drop(tcp);
}

async fn both_ways(tcp: &mut TcpStream, link: &UnixStream, early: &[u8]) -> io::Result<()> {
    let (from_tcp, mut to_tcp) = tcp.split();
    let (mut outward, mut inward) = (pin!(send(&from_tcp, link)), pin!(receive(&mut to_tcp, link, early)));
    let (mut sent_all, mut received_all) = (false, false);
    while !(sent_all && received_all) {
        tokio::select! {
            sent = &mut outward, if !sent_all => {
                sent?;
                sent_all = true;
            }
            received = &mut inward, if !received_all => {
                received?;
                received_all = true;
            }
            // A direction that has ended is not read any more. That the other side is gone must be noticed here.
            _ = from_tcp.ready(Interest::ERROR), if sent_all => return Err(io::ErrorKind::ConnectionReset.into()),
            () = ended(link), if received_all => return Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
    Ok(())
}

/// Sends what arrives by TCP as pieces, to the end of this direction.
async fn send(tcp: &ReadHalf<'_>, link: &UnixStream) -> io::Result<()> {
    let mut buffer = Buffer::new();
    loop {
        tcp.readable().await?;
        let room = buffer.bytes().len() - HEADER;
        let read = match tcp.try_read(&mut buffer.bytes()[HEADER..]) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            read => read?,
        };
        // Header and bytes in one call. At the end of this direction, the piece is empty.
        buffer.bytes()[..HEADER].copy_from_slice(&header(read));
        let piece = &buffer.bytes()[..HEADER + read];
        tokio::select! {
            biased;
            written = write(link, piece) => written?,
            // The link may never take the piece, and its sender is gone.
            _ = tcp.ready(Interest::ERROR) => return Err(io::ErrorKind::ConnectionReset.into()),
        }
        if read == 0 {
            return Ok(());
        }
        buffer.adapt(read, room);
    }
}

async fn write(link: &UnixStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        link.writable().await?;
        match link.try_write(bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            written => bytes = &bytes[written?..],
        }
    }
    Ok(())
}

/// Writes the pieces of the link to TCP, to the end of this direction.
async fn receive(tcp: &mut WriteHalf<'_>, link: &UnixStream, early: &[u8]) -> io::Result<()> {
    let mut reader = Reader::default();
    if take(tcp, link, &mut reader, early).await? {
        return Ok(());
    }
    let mut buffer = Buffer::new();
    loop {
        link.readable().await?;
        let room = buffer.bytes().len();
        let read = match link.try_read(buffer.bytes()) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => read?,
        };
        if take(tcp, link, &mut reader, &buffer.bytes()[..read]).await? {
            return Ok(());
        }
        buffer.adapt(read, room);
    }
}

/// Writes what arrived on the link. Returns whether it contains the end of this direction.
async fn take(
    tcp: &mut WriteHalf<'_>,
    link: &UnixStream,
    reader: &mut Reader,
    mut input: &[u8],
) -> io::Result<bool> {
    while let Some(arrived) = reader.next(&mut input) {
        match arrived {
            Arrived::Bytes(bytes) => unless_gone(tcp.write_all(bytes), || hung_up(link)).await?,
            Arrived::End => {
                tcp.shutdown().await?;
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Waits until the link ends, after the end of the direction that is read from it.
async fn ended(link: &UnixStream) {
    loop {
        match link.readable().await.and_then(|()| link.try_read(&mut [0])) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // Nothing may follow an end, so bytes count as one too.
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Shutdown;

    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;
    use tokio::task::JoinHandle;

    use super::*;

    /// A client and a server with two relays between them, and both relays' results.
    struct Path {
        client: TcpStream,
        server: TcpStream,
        relays: [JoinHandle<End>; 2],
    }

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (near, listener.accept().await.unwrap().0)
    }

    async fn path() -> Path {
        let ((client, accepted), (dialled, server)) = (pair().await, pair().await);
        let (near, far) = UnixStream::pair().unwrap();
        let relays = [tokio::spawn(relay(accepted, near, &[])), tokio::spawn(relay(dialled, far, &[]))];
        Path { client, server, relays }
    }

    async fn ends(relays: [JoinHandle<End>; 2]) -> [End; 2] {
        let [near, far] = relays;
        let both = async { [near.await.unwrap(), far.await.unwrap()] };
        tokio::time::timeout(Duration::from_secs(20), both).await.expect("a relay does not end")
    }

    #[tokio::test]
    async fn a_half_close_is_carried_and_the_other_direction_continues() {
        let Path { mut client, mut server, relays } = path().await;
        let sent: Vec<u8> = (0..3_000_000_u32).map(|n| n.to_le_bytes()[0]).collect();
        let (uploaded, ()) = tokio::join!(
            async {
                let mut all = Vec::new();
                server.read_to_end(&mut all).await.unwrap();
                server.write_all(b"answer").await.unwrap();
                server.shutdown().await.unwrap();
                all
            },
            async {
                client.write_all(&sent).await.unwrap();
                client.shutdown().await.unwrap();
            }
        );
        assert!(uploaded == sent);
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        assert_eq!(answer, b"answer");
        drop((client, server));
        assert_eq!(ends(relays).await, [End::Closed; 2]);
    }

    #[tokio::test]
    async fn a_link_that_is_cut_resets_the_connection_even_after_a_half_close() {
        for half_closed in [false, true] {
            let (mut client, accepted) = pair().await;
            let (near, mut far) = UnixStream::pair().unwrap();
            let relay = tokio::spawn(relay(accepted, near, &[]));
            far.write_all(&[&header(4)[..], b"half"].concat()).await.unwrap();
            if half_closed {
                far.write_all(&header(0)).await.unwrap();
            }
            let mut got = [0; 4];
            client.read_exact(&mut got).await.unwrap();
            drop(far);
            assert_eq!(relay.await.unwrap(), End::Cut);
            if half_closed {
                // What the client was sent is complete. What it sends is lost, which it learns when it sends.
                assert!(client.ready(Interest::ERROR).await.is_ok());
            } else {
                let error = client.read(&mut got).await.unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
            }
        }
    }

    #[tokio::test]
    async fn a_reset_reaches_the_other_side_as_a_reset() {
        let Path { client, mut server, relays } = path().await;
        reset(client);
        let error = server.read(&mut [0]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        assert_eq!(ends(relays).await, [End::Cut; 2]);
    }

    #[tokio::test]
    async fn a_client_that_leaves_a_server_that_never_reads_frees_everything() {
        let Path { client, mut server, relays } = path().await;
        // Until nothing more fits anywhere between them.
        let full = async {
            let piece = [1; 64 << 10];
            while tokio::time::timeout(Duration::from_millis(200), client.writable()).await.is_ok() {
                let _ = client.try_write(&piece);
            }
        };
        full.await;
        server.write_all(b"garbage that the client never reads").await.unwrap();
        client.readable().await.unwrap();
        // The kernel resets a connection that is closed with unread bytes.
        drop(client);
        assert_eq!(ends(relays).await, [End::Cut; 2]);
    }

    #[tokio::test]
    async fn bytes_that_came_with_the_upgrade_are_not_lost() {
        let (mut client, accepted) = pair().await;
        let (near, _far) = UnixStream::pair().unwrap();
        let early = [&header(5)[..], b"hello"].concat();
        let relay = tokio::spawn(async move { relay(accepted, near, &early).await });
        let mut got = [0; 5];
        client.read_exact(&mut got).await.unwrap();
        assert_eq!(&got, b"hello");
        client.into_std().unwrap().shutdown(Shutdown::Both).unwrap();
        drop(_far);
        assert_eq!(relay.await.unwrap(), End::Cut);
    }
}
