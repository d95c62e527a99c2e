//! Copies from the caller's disk into a bay.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bay_client::{Client, from_stdin, invalid, local, transfer};
use bay_types::ApiError;
use http::Method;

use super::{Copied, Target, copying, name_of, refuse_sparse};
use crate::archive::{STAT_BLOCK, pack, too_sparse};
use crate::output::progress::Meter;

pub(super) async fn path(
    client: &mut Client,
    source: &Path,
    written: &str,
    target: &Target<'_>,
    meter: &mut Meter,
) -> Result<Copied, ApiError> {
    let metadata =
        std::fs::metadata(source).map_err(|e| local(&format!("reading {}", source.display()), &e))?;
    if metadata.is_dir() {
        return tree(client, source, written, target, meter).await;
    }
    if metadata.is_file() && too_sparse(metadata.len(), metadata.blocks().saturating_mul(STAT_BLOCK)) {
        return Err(refuse_sparse(&source.display().to_string(), metadata.len()));
    }
    let name = name_of(written)?;
    let file = tokio::fs::File::open(source)
        .await
        .map_err(|e| local(&format!("reading {}", source.display()), &e))?;
    let path = target.for_file(client, name).await?;
    let request = target.request("files", &path, &format!("&mode={:o}", metadata.mode() & 0o777));
    let news = copying(name.unwrap_or_default(), Some(metadata.len()).filter(|_| metadata.is_file()));
    let finish = || async { Ok(()) };
    let _: serde_json::Value =
        transfer::send(client, Method::PUT, &request, file, finish, news, meter).await?;
    Ok(Copied { files: 1, bytes: metadata.len(), notes: Vec::new() })
}

/// Copies standard input into a file.
pub(super) async fn stream(client: &mut Client, target: &Target<'_>) -> Result<Copied, ApiError> {
    let path = target.for_file(client, None).await?;
    let request = target.request("files", &path, "");
    let sent = Arc::new(AtomicU64::new(0));
    let _: serde_json::Value = client.upload(Method::PUT, &request, from_stdin(Arc::clone(&sent))).await?;
    Ok(Copied { files: 1, bytes: sent.load(Ordering::Relaxed), notes: Vec::new() })
}

async fn tree(
    client: &mut Client,
    source: &Path,
    written: &str,
    target: &Target<'_>,
    meter: &mut Meter,
) -> Result<Copied, ApiError> {
    let canonical = crate::naming::absolute(source)?;
    let own_name = canonical.file_name().map(|name| name.to_string_lossy().into_owned());
    // For `..` the name of the copy is that of the directory, which the text does not contain.
    let name = match name_of(written) {
        Ok(name) => name.map(str::to_owned),
        Err(_) if written.ends_with("..") => own_name,
        Err(error) => return Err(error),
    };
    if canonical == Path::new("/") {
        return Err(invalid(
            "the root directory of this host cannot be copied into a bay",
            "name a directory below it",
        ));
    }
    let (path, prefix) = target.for_tree(client, name.as_deref()).await?;
    meter.stage(&format!("copying {}", source.display()));
    let (body, packing) = pack(move |packer| packer.add_tree(&canonical, Path::new(&prefix)));
    let request = target.request("archive", &path, "");
    let sent = client.upload::<serde_json::Value>(Method::PUT, &request, body).await;
    let packed = packing.await.map_err(|e| ApiError::internal(&e))?;
    match (sent, packed) {
        (Ok(_), Ok(packed)) => Ok(Copied {
            files: packed.files,
            bytes: packed.bytes,
            notes: packed.warning().into_iter().collect(),
        }),
        (Err(error), Ok(_)) => Err(error),
        (Err(error), Err(cause)) if cause.kind() == io::ErrorKind::BrokenPipe => Err(error),
        (_, Err(cause)) => Err(local(&format!("reading {}", source.display()), &cause)),
    }
}
