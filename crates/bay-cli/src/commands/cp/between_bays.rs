//! Copies from one bay into another. The bytes pass through this process unchanged. Each guest checks its own side.

use std::io;
use std::path::PathBuf;

use bay_client::{Body, Client, bay_path};
use bay_text::percent::path_value;
use bay_types::ApiError;
use bay_types::guest::FileKind;
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::Method;
use http_body_util::{BodyExt, BodyStream, StreamBody};
use hyper::body::Frame;

use super::{Copied, Target, name_of, refuse_kind, refuse_sparse, source_stat};
use crate::archive::{harmless_beginning, pack, too_sparse};

pub(super) async fn copy(
    client: &mut Client,
    from: &str,
    source: &str,
    target: &Target<'_>,
) -> Result<Copied, ApiError> {
    let stat = source_stat(client, from, source).await?;
    let name = name_of(source)?;
    let mut reading = client.another();
    let fetch = |kind: &str| bay_path(from, &format!("/{kind}?path={}", path_value(source.as_bytes())));
    match stat.kind {
        FileKind::File if stat.allocated_bytes.is_some_and(|allocated| too_sparse(stat.size, allocated)) => {
            Err(refuse_sparse(&format!("{from}:{source}"), stat.size))
        }
        FileKind::File => {
            let path = target.for_file(client, name).await?;
            let body = reading.download(&fetch("files")).await?.map_err(io::Error::other).boxed_unsync();
            let request = target.request("files", &path, &format!("&mode={:o}", stat.mode & 0o777));
            let _: serde_json::Value = client.upload(Method::PUT, &request, body).await?;
            Ok(Copied { files: 1, bytes: stat.size, notes: Vec::new() })
        }
        FileKind::Directory => {
            let (directory, under) = target.for_tree(client, name).await?;
            let path = if under.is_empty() {
                directory
            } else {
                make_directory(client, target, &directory, &under).await?
            };
            let body = reading.download(&fetch("archive")).await?.map_err(io::Error::other).boxed_unsync();
            let body = after_beginning(body).map_err(|e| ApiError::internal(&e))?;
            let request = target.request("archive", &path, "");
            let _: serde_json::Value = client.upload(Method::PUT, &request, body).await?;
            Ok(Copied::default())
        }
        FileKind::Symlink | FileKind::Other => Err(refuse_kind(from, source)),
    }
}

/// Makes the directory that receives the copy, and returns its path.
async fn make_directory(
    client: &mut Client,
    target: &Target<'_>,
    parent: &str,
    name: &str,
) -> Result<String, ApiError> {
    let member = PathBuf::from(name);
    let (body, packing) = pack(move |packer| packer.add_directory(&member));
    let _: serde_json::Value =
        client.upload(Method::PUT, &target.request("archive", parent, ""), body).await?;
    packing.await.map_err(|e| ApiError::internal(&e))?.map_err(|e| ApiError::internal(&e))?;
    Ok(super::join(parent, name))
}

/// Prevents that one bay names files to delete in another.
fn after_beginning(body: Body) -> io::Result<Body> {
    let beginning = Bytes::from(harmless_beginning()?);
    let first = stream::once(async move { Ok(Frame::data(beginning)) });
    Ok(StreamBody::new(first.chain(BodyStream::new(body))).boxed_unsync())
}
