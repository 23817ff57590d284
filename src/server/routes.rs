//! What is served where.

use super::answers::answer;
use super::bodies::{Answered, apart, by_body, read, reply};
use super::refusal::Refusal;
use super::{State, files, texts};
use crate::io::row::Endpoint;
use axum::Router;
use axum::body::Body;
use axum::extract::{MatchedPath, Path, Request, State as Shared};
use axum::http::StatusCode;
use axum::http::header::{AUTHORIZATION, CONNECTION, CONTENT_TYPE, HeaderMap, HeaderValue};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use tokio::sync::oneshot;

/// Where requests are answered that need no key.
const HEALTH: &str = "/health";

pub fn routes(state: Arc<State>) -> Router {
    Router::new()
        .route(
            "/v1/chat/completions",
            post(|s, b| ask(s, b, Endpoint::Chat)),
        )
        .route(
            "/v1/completions",
            post(|s, b| ask(s, b, Endpoint::Completions)),
        )
        .route("/v1/models", get(models))
        .route("/v1/models/{*model}", get(model))
        .route("/tokenize", by_body(texts::tokenize))
        .route("/detokenize", by_body(texts::detokenize))
        .route("/metrics", get(metrics))
        .route(HEALTH, get(health))
        .merge(files::routes())
        .fallback(async |request: Request| Refusal::not_found(request.uri().path()))
        .method_not_allowed_fallback(async |request: Request| {
            let message = format!(
                "{}: found the method {}",
                request.uri().path(),
                request.method()
            );
            Refusal::new(
                StatusCode::METHOD_NOT_ALLOWED,
                "method_not_allowed",
                message,
            )
        })
        .layer(from_fn_with_state(state.clone(), around))
        .with_state(state)
}

/// What every request passes: the key, and the count of its route.
async fn around(shared: Shared<Arc<State>>, request: Request, next: Next) -> Response {
    let Shared(state) = shared;
    let route = request.extensions().get::<MatchedPath>();
    let route = route.map_or("none", MatchedPath::as_str).to_owned();
    let draining = state.draining.load(Ordering::SeqCst);
    let mut response = if route != HEALTH && !state.has_key(request.headers()) {
        Refusal::new(
            StatusCode::UNAUTHORIZED,
            "invalid_api_key",
            "found no right key, expected the header \"Authorization: Bearer KEY\" with the server's --api-key",
        )
        .into_response()
    } else if draining && route != HEALTH {
        ending().into_response()
    } else {
        next.run(request).await
    };
    if draining {
        let headers = response.headers_mut();
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    state.metrics.request(&route, response.status().as_u16());
    response
}

fn ending() -> Refusal {
    let message = "the server is ending, expected requests to another one";
    Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "ending", message)
}

impl State {
    /// Whether a request may pass. How long that takes tells nothing of the key: hashes are compared, as a whole.
    fn has_key(&self, headers: &HeaderMap) -> bool {
        let Some(key) = &self.key else { return true };
        let given = headers.get(AUTHORIZATION).map(HeaderValue::as_bytes);
        let given = given.and_then(|given| given.strip_prefix(b"Bearer "));
        let given: [u8; 32] = Sha256::digest(given.unwrap_or_default()).into();
        let differ = (0..32).fold(0, |differ, at| differ | (key[at] ^ given[at]));
        std::hint::black_box(differ) == 0
    }

    pub fn slots(&self) -> usize {
        let opened = self.session.opened();
        opened.options.max_seqs as usize * opened.targets().count()
    }
}

async fn ask(Shared(state): Shared<Arc<State>>, body: Body, endpoint: Endpoint) -> Answered {
    let came = Instant::now();
    let body = read(body).await?;
    let asking = state.clone();
    let asked = apart(move || asking.ask(endpoint, &body)).await?;
    answer(state, asked, came).await
}

fn described(state: &State) -> Value {
    json!({
        "id": state.session.opened().spec.model.short_name(),
        "object": "model",
        "created": state.began,
        "owned_by": "tailgraph",
        "max_model_len": state.session.texts().rules.max_context,
    })
}

async fn models(Shared(state): Shared<Arc<State>>) -> Response {
    reply(&json!({"object": "list", "data": [described(&state)]}))
}

async fn model(Shared(state): Shared<Arc<State>>, Path(name): Path<String>) -> Answered {
    let model = described(&state);
    if model["id"] == name.as_str() {
        return Ok(reply(&model));
    }
    Err(Refusal::not_found(&format!("model {name}")))
}

async fn health(Shared(state): Shared<Arc<State>>) -> Answered {
    if state.draining.load(Ordering::SeqCst) {
        return Err(ending());
    }
    Ok(reply(&json!({"status": "ok"})))
}

async fn metrics(Shared(state): Shared<Arc<State>>) -> Response {
    let (tell, status) = oneshot::channel();
    // A client that has gone is not told.
    state.session.status(|status| _ = tell.send(status));
    let page = state
        .metrics
        .page(state.session.opened(), status.await.ok());
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(CONTENT_TYPE, kind)], page).into_response()
}
