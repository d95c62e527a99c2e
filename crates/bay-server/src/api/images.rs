use axum::extract::{Path, State};
use axum::response::Response;
use bay_types::image::{ImageImport, ImageView};
use http::StatusCode;

use super::{Caller, Failure, Input, Json, NoQuery, Shared};
use crate::daemon::to_the_end;
use crate::news;
use crate::service::images;

pub(super) async fn list(_: NoQuery, State(daemon): Shared) -> Result<Json<Vec<ImageView>>, Failure> {
    Ok(Json(images::list(&daemon).await?))
}

pub(super) async fn import(
    _: NoQuery,
    State(daemon): Shared,
    Caller(caller): Caller,
    Input(import): Input<ImageImport>,
) -> Response {
    news::answer(|teller| async move {
        let (image, _) = images::import(&daemon, import, caller, teller).await?;
        Ok(image)
    })
}

pub(super) async fn remove(
    _: NoQuery,
    State(daemon): Shared,
    Caller(caller): Caller,
    Path(image): Path<String>,
) -> Result<StatusCode, Failure> {
    to_the_end(async move { images::remove(&daemon, image, caller).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}
