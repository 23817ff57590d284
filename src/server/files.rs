//! `/v1/files` and `/v1/batches`, over a folder.

use super::batches::Batches;
use super::bodies::{Answered, apart, by_body, fields, late, reply};
use super::folder::{Folder, remove};
use super::refusal::Refusal;
use super::{READ_LIMIT, State};
use crate::error::Error;
use crate::files::{Out, Unfinished};
use axum::Router;
use axum::extract::multipart::{Field, MultipartError};
use axum::extract::{
    DefaultBodyLimit, FromRequest, Multipart, Path as Named, Request, State as Shared,
};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::{get, post};
use serde_json::{Value, json};
use std::io::Write;
use std::sync::Arc;
use tokio::time::timeout;

/// The most bytes of a file.
const FILE_BYTES: u64 = 1 << 30;
/// The most bytes of a field beside it.
const FIELD_BYTES: usize = 4096;

pub fn routes() -> Router<Arc<State>> {
    Router::new()
        .route(
            "/v1/files",
            post(upload)
                .get(|s| list(s, "file-"))
                .layer(DefaultBodyLimit::disable()),
        )
        .route(
            "/v1/files/{id}",
            get(|s, i| by_id(s, i, file)).delete(|s, i| by_id(s, i, delete)),
        )
        .route("/v1/files/{id}/content", get(content))
        .route(
            "/v1/batches",
            by_body(|state, body| state.batches()?.create(&fields(body)?))
                .get(|s| list(s, "batch_")),
        )
        .route("/v1/batches/{id}", get(|s, i| by_id(s, i, batch)))
        .route(
            "/v1/batches/{id}/cancel",
            post(|s, i| by_id(s, i, |state, id| state.batches()?.cancel(id))),
        )
}

async fn by_id(
    Shared(state): Shared<Arc<State>>,
    Named(id): Named<String>,
    work: fn(&State, &str) -> Result<Value, Refusal>,
) -> Answered {
    apart(move || Ok(reply(&work(&state, &id)?))).await
}

fn file(state: &State, id: &str) -> Result<Value, Refusal> {
    state.batches()?.folder().read("file-", id)
}

fn batch(state: &State, id: &str) -> Result<Value, Refusal> {
    state.batches()?.folder().read("batch_", id)
}

fn delete(state: &State, id: &str) -> Result<Value, Refusal> {
    let folder = state.batches()?.folder();
    folder.read("file-", id)?;
    remove(&folder.about(id))?;
    remove(&folder.content(id))?;
    Ok(json!({"id": id, "object": "file", "deleted": true}))
}

impl State {
    fn batches(&self) -> Result<&Batches, Refusal> {
        self.batches.as_ref().ok_or_else(|| {
            let message = "files and batches: the server has no folder for them, expected it to be started with --batches DIR";
            Refusal::new(StatusCode::NOT_IMPLEMENTED, "no_batches", message)
        })
    }

    fn folder(&self) -> Result<Folder, Refusal> {
        Ok(self.batches()?.folder().clone())
    }
}

fn wrong(message: impl Into<String>) -> Refusal {
    Refusal::new(StatusCode::BAD_REQUEST, "invalid_request", message)
}

async fn upload(Shared(state): Shared<Arc<State>>, request: Request) -> Answered {
    let folder = state.folder()?;
    let mut form = Multipart::from_request(request, &())
        .await
        .map_err(|error| wrong(error.body_text()))?;
    let id = folder.id("file-");
    let mut name = None;
    let mut purpose = String::new();
    let mut out = None;
    while let Some(field) = part(form.next_field()).await? {
        match field.name() {
            Some("file") => {
                name = Some(field.file_name().unwrap_or("file").to_owned());
                let file = Out::open(&folder.content(&id), Unfinished::Removed)?;
                out = Some(store(field, file).await?);
            }
            Some("purpose") => purpose = text(field).await?,
            _ => drop(text(field).await?),
        }
    }
    let (Some(out), Some(name)) = (out, name) else {
        return Err(wrong("file: found none, expected a form with a file"));
    };
    if purpose != "batch" {
        return Err(wrong(format!(
            "purpose: found {purpose:?}, expected \"batch\""
        )));
    }
    apart(move || {
        out.finish()?;
        Ok(reply(&folder.add_file(&id, &name, &purpose)?))
    })
    .await
}

/// What comes of a form, in time.
async fn part<T>(next: impl Future<Output = Result<T, MultipartError>>) -> Result<T, Refusal> {
    let part = timeout(READ_LIMIT, next).await.map_err(|_| late())?;
    part.map_err(|error| wrong(error.body_text()))
}

async fn store(mut field: Field<'_>, mut out: Out) -> Result<Out, Refusal> {
    let mut bytes = 0;
    while let Some(chunk) = part(field.chunk()).await? {
        bytes += chunk.len() as u64;
        if bytes > FILE_BYTES {
            let message = format!("file: found more than {FILE_BYTES} bytes, expected fewer");
            return Err(Refusal::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                "too_large",
                message,
            ));
        }
        out = apart(move || {
            let written = out.write_all(&chunk);
            written.map_err(|error| Error::io(out.name(), error))?;
            Ok(out)
        })
        .await?;
    }
    Ok(out)
}

async fn text(mut field: Field<'_>) -> Result<String, Refusal> {
    let mut text = Vec::new();
    while let Some(chunk) = part(field.chunk()).await? {
        text.extend(chunk);
        if text.len() > FIELD_BYTES {
            return Err(wrong(format!(
                "a field has more than {FIELD_BYTES} bytes, expected fewer"
            )));
        }
    }
    String::from_utf8(text).map_err(|_| wrong("a field is not UTF-8, expected text"))
}

async fn list(Shared(state): Shared<Arc<State>>, kind: &'static str) -> Answered {
    let folder = state.folder()?;
    apart(move || Ok(reply(&folder.list(kind)))).await
}

async fn content(Shared(state): Shared<Arc<State>>, Named(id): Named<String>) -> Answered {
    let folder = state.folder()?;
    let bytes = apart(move || {
        folder.read("file-", &id)?;
        let path = folder.content(&id);
        Ok(std::fs::read(&path).map_err(|error| Error::io(&path, error))?)
    });
    Ok(([(CONTENT_TYPE, "application/jsonl")], bytes.await?).into_response())
}
