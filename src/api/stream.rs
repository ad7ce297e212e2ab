//! Owns: server-sent events: the log's events as they become durable (IF-01).
//! May call: the backend, the canonical event.
//! Never: give out an id before every event of that commit was given out, so that resuming loses none.

use super::backend::{Backend, EventsAfter, Page};
use super::server::stopped;
use super::types::parse_cursor;
use crate::core::event::to_json;
use crate::core::ids::CommitNo;
use crate::core::record::{EventRecord, Position};
use axum::response::sse::Event;
use futures_util::Stream;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, watch};

/// Events read from the log at once.
const PAGE_COUNT: usize = 200;

struct Follower {
    backend: Arc<dyn Backend>,
    commits: watch::Receiver<CommitNo>,
    shutdown: watch::Receiver<bool>,
    at: Position,
    ready: VecDeque<Event>,
    _permit: OwnedSemaphorePermit,
}

/// Where a stream begins: behind the commit named by `Last-Event-ID`, else behind the newest one.
#[must_use]
pub fn start(last_event_id: Option<&str>, newest: CommitNo) -> Option<Position> {
    let behind = |no| Position {
        no,
        index: u32::MAX,
    };
    match last_event_id {
        None => Some(behind(newest)),
        Some(text) => text
            .parse()
            .map(|no| behind(CommitNo(no)))
            .ok()
            .or_else(|| parse_cursor(text)),
    }
}

/// Follows the log from `at`, until the caller goes or the gateway stops.
pub fn follow(
    backend: Arc<dyn Backend>,
    at: Position,
    shutdown: watch::Receiver<bool>,
    permit: OwnedSemaphorePermit,
) -> impl Stream<Item = Result<Event, Infallible>> {
    let follower = Follower {
        commits: backend.commits(),
        backend,
        shutdown,
        at,
        ready: VecDeque::new(),
        _permit: permit,
    };
    futures_util::stream::unfold(follower, |mut follower| async move {
        let event = follower.next().await?;
        Some((Ok(event), follower))
    })
}

impl Follower {
    async fn next(&mut self) -> Option<Event> {
        while self.ready.is_empty() {
            // Marked as seen before the read: a commit that comes during it wakes us again.
            self.commits.mark_unchanged();
            let page = self
                .backend
                .events(EventsAfter::Position(self.at), PAGE_COUNT);
            let page = match page.await {
                Ok(page) => page,
                Err(error) => {
                    log::warn!("api: a stream ends: {error}");
                    return None;
                }
            };
            self.take(page);
            if self.ready.is_empty() {
                tokio::select! {
                    () = stopped(&mut self.shutdown) => return None,
                    changed = self.commits.changed() => changed.ok()?,
                }
            }
        }
        self.ready.pop_front()
    }

    fn take(&mut self, page: Page<(Position, EventRecord), Position>) {
        let more = page.next.is_some();
        let mut items = page.items.into_iter().peekable();
        while let Some((position, event)) = items.next() {
            let last_of_commit = match items.peek() {
                Some((next, _)) => next.no != position.no,
                None => !more,
            };
            // White space between JSON tokens may hold a CR, which a stream cannot carry.
            let data = to_json(&event).replace('\r', " ");
            let mut shown = Event::default()
                .event(event.event_type.replace(['\r', '\n'], " "))
                .data(data);
            if last_of_commit {
                shown = shown.id(position.no.to_string());
            }
            self.at = position;
            self.ready.push_back(shown);
        }
    }
}
