use std::sync::Arc;

use axum::extract::{Path, Request, State};
use axum::response::Response;
use bay_types::repo::{RepoOffer, RepoOffered, RepoSync, RepoView};
use bay_types::{ApiError, ErrorCode, RepoId};
use http::StatusCode;
use http_body_util::{BodyExt, Limited};
use tokio::sync::mpsc;

use super::{Caller, Failure, Input, Json, NoQuery, Shared};
use crate::daemon::to_the_end;
use crate::news;
use crate::service::repos;
use crate::service::repos::{ChannelReader, Piece};

/// Longest bundle: far beyond the largest repository, far below a disk.
const MAX_BUNDLE: usize = 64 << 30;
/// Pieces of a bundle between the network and git.
const IN_FLIGHT: usize = 16;

pub(super) async fn list(_: NoQuery, State(daemon): Shared) -> Result<Json<Vec<RepoView>>, Failure> {
    Ok(Json(repos::list(&daemon).await?))
}

pub(super) async fn offer(
    _: NoQuery,
    State(daemon): Shared,
    Input(offer): Input<RepoOffer>,
) -> Result<Json<RepoOffered>, Failure> {
    Ok(Json(to_the_end(async move { repos::offer(&daemon, offer).await }).await?))
}

pub(super) async fn bundle(
    _: NoQuery,
    State(daemon): Shared,
    Caller(caller): Caller,
    Path(repo): Path<String>,
    request: Request,
) -> Result<Json<RepoView>, Failure> {
    let repo = repo.parse::<RepoId>().map_err(|e| {
        ApiError::new(
            ErrorCode::RepoNotFound,
            e.to_string(),
            "offer the repository first; the answer has its id",
        )
    })?;
    let (to, from) = mpsc::channel(IN_FLIGHT);
    let at = Arc::clone(&daemon);
    let _turn = daemon.upload_turn().await?;
    let taking =
        tokio::spawn(async move { repos::unbundle(&at, repo, ChannelReader::new(from), caller).await });
    let mut body = Limited::new(request.into_body(), MAX_BUNDLE);
    loop {
        let piece = match body.frame().await {
            None => Piece::End,
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => Piece::Bytes(data),
                Err(_) => continue,
            },
            // Closing the channel without an end tells the other side.
            Some(Err(_)) => break,
        };
        let last = matches!(piece, Piece::End);
        // Whoever reads has given up: its error is the answer.
        if to.send(piece).await.is_err() || last {
            break;
        }
    }
    drop(to);
    let view = taking.await.map_err(|e| ApiError::internal(&e))??;
    Ok(Json(view))
}

pub(super) async fn sync(
    _: NoQuery,
    State(daemon): Shared,
    Caller(caller): Caller,
    Input(sync): Input<RepoSync>,
) -> Response {
    news::answer(|teller| async move { repos::sync(&daemon, &sync.repo, caller, teller).await })
}

pub(super) async fn remove(
    _: NoQuery,
    State(daemon): Shared,
    Caller(caller): Caller,
    Path(repo): Path<String>,
) -> Result<StatusCode, Failure> {
    to_the_end(async move { repos::remove(&daemon, &repo, caller).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}
