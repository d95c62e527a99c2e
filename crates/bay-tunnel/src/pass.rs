//! What the process in the middle does.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::buffer::Buffer;
use crate::hang_up::unless_gone;

/// How many bytes [`pass`] moved so far.
#[derive(Debug, Default)]
pub struct Moved {
    /// From the near stream to the far one.
    pub there: AtomicU64,
    /// From the far stream to the near one.
    pub back: AtomicU64,
}

/// Copies bytes between two streams until one of them ends or fails, then closes both. What arrived before an end in
/// the same direction is passed on. `near_gone` says whether the client is gone; it is called while the far side
/// takes nothing.
pub async fn pass(
    near: impl AsyncRead + AsyncWrite + Unpin,
    far: impl AsyncRead + AsyncWrite + Unpin,
    near_gone: impl Fn() -> bool,
    moved: &Moved,
) -> io::Result<()> {
    let (mut near_reads, mut near_writes) = tokio::io::split(near);
    let (mut far_reads, mut far_writes) = tokio::io::split(far);
    tokio::select! {
        ended = copy(&mut near_reads, &mut far_writes, near_gone, &moved.there) => ended,
        ended = copy(&mut far_reads, &mut near_writes, || false, &moved.back) => ended,
    }
}

async fn copy(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    gone: impl Fn() -> bool,
    moved: &AtomicU64,
) -> io::Result<()> {
    let mut buffer = Buffer::new();
    loop {
        let room = buffer.bytes().len();
        let read = from.read(buffer.bytes()).await?;
        if read == 0 {
            return to.flush().await;
        }
        unless_gone(to.write_all(&buffer.bytes()[..read]), &gone).await?;
        moved.fetch_add(read as u64, Ordering::Relaxed);
        buffer.adapt(read, room);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::net::UnixStream;

    use super::*;

    #[tokio::test]
    async fn what_arrived_before_an_end_is_passed_on_and_counted() {
        let (mut client, near) = UnixStream::pair().unwrap();
        let (far, mut server) = UnixStream::pair().unwrap();
        let moved = Moved::default();
        let talk = async {
            client.write_all(b"question").await.unwrap();
            let mut asked = [0; 8];
            server.read_exact(&mut asked).await.unwrap();
            server.write_all(&[7; 300_000]).await.unwrap();
            drop(server);
            let mut answer = Vec::new();
            client.read_to_end(&mut answer).await.unwrap();
            answer.len()
        };
        let (length, passed) = tokio::join!(talk, pass(near, far, || false, &moved));
        passed.unwrap();
        assert_eq!(length, 300_000);
        assert_eq!((moved.there.into_inner(), moved.back.into_inner()), (8, 300_000));
    }

    #[tokio::test]
    async fn a_client_that_left_is_noticed_although_the_far_side_takes_nothing() {
        let (client, near) = UnixStream::pair().unwrap();
        let (far, _server) = UnixStream::pair().unwrap();
        let watched = near.into_std().unwrap();
        let near = UnixStream::from_std(watched.try_clone().unwrap()).unwrap();
        let moved = Moved::default();
        let fill = async move {
            loop {
                // A link that takes nothing for this long is full.
                let room = tokio::time::timeout(Duration::from_millis(300), client.writable());
                if room.await.is_err() {
                    return;
                }
                let _ = client.try_write(&[0; 4096]);
            }
        };
        let passed = pass(near, far, || crate::hung_up(&watched), &moved);
        let ((), passed) = tokio::join!(fill, passed);
        assert_eq!(passed.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    }
}
