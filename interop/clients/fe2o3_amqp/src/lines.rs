//! What the program says: a JSON object a line.

use fe2o3_amqp::link::{
    DetachError, LinkStateError, ReceiverAttachError, RecvError, SendError, SenderAttachError,
};
use fe2o3_amqp::transaction::PostError;
use fe2o3_amqp::types::definitions::{self, ErrorCondition};
use fe2o3_amqp::types::messaging::annotations::OwnedKey;
use fe2o3_amqp::types::messaging::{Body, Message};
use fe2o3_amqp::types::primitives::{SimpleValue, Symbol, Value};
use serde_json::{Map, Value as Json, json};
use std::error::Error;

pub fn say(event: &str, mut values: Json) {
    values["event"] = event.into();
    println!("{values}");
}

pub fn text(body: &Body<Value>) -> &str {
    match body {
        Body::Value(value) => match &value.0 {
            Value::String(text) => text,
            _ => "",
        },
        _ => "",
    }
}

pub fn show(message: &Message<Body<Value>>) {
    let body = text(&message.body);
    let property = |name: &str| message.application_properties.as_ref()?.0.get(name).cloned();
    let annotation = |name: &str| {
        let key = OwnedKey::Symbol(Symbol::from(name));
        message.message_annotations.as_ref()?.0.get(&key).cloned()
    };
    let failed = message.header.as_ref().map_or(0, |header| header.delivery_count);
    say(
        "message",
        json!({
            "body": (body.len() < 200).then_some(body),
            "size": body.len(),
            "n": property("n").map(SimpleValue::into).as_ref().map(json_of),
            "colour": property("colour").map(SimpleValue::into).as_ref().map(json_of),
            "delivery_count": failed,
            "redelivered": failed > 0,
            "replay_id": annotation("x-opt-replay-id").as_ref().map(json_of),
            "replay_end": annotation("x-opt-replay-end") == Some(Value::Bool(true)),
        }),
    );
}

fn json_of(value: &Value) -> Json {
    match value {
        Value::String(text) => text.as_str().into(),
        Value::Symbol(symbol) => symbol.as_str().into(),
        Value::Int(number) => (*number).into(),
        Value::Uint(number) => (*number).into(),
        Value::Long(number) => (*number).into(),
        other => format!("{other:?}").into(),
    }
}

/// An error as a user of the library sees it: what the gateway said is in it, or it is the library's own.
pub fn show_failure(error: &(dyn Error + 'static)) {
    let condition = remote(error).map(|it| symbol(&it.condition).to_string());
    let description = remote(error).and_then(|it| it.description.clone());
    let mut info = Map::new();
    for (key, value) in remote(error).and_then(|it| it.info.as_deref()).into_iter().flatten() {
        info.insert(key.to_string(), json_of(value));
    }
    let kind = format!("{error:?}");
    say(
        "error",
        json!({
            "kind": kind.split(['(', ' ', '{']).next(),
            "condition": condition,
            "info": info,
            "text": description.unwrap_or_else(|| error.to_string()),
        }),
    );
}

fn symbol(condition: &ErrorCondition) -> Symbol {
    match condition {
        ErrorCondition::AmqpError(it) => it.into(),
        ErrorCondition::ConnectionError(it) => it.into(),
        ErrorCondition::SessionError(it) => it.into(),
        ErrorCondition::LinkError(it) => it.into(),
        ErrorCondition::TransactionError(it) => it.into(),
        ErrorCondition::Custom(it) => it.clone(),
    }
}

/// Whether the gateway ended the link, and had no error to tell.
pub fn is_detached(error: &RecvError) -> bool {
    use LinkStateError::{RemoteClosed, RemoteDetached};
    matches!(error, RecvError::LinkStateError(RemoteClosed | RemoteDetached))
}

fn remote<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a definitions::Error> {
    let of_link = |error: &'a LinkStateError| match error {
        LinkStateError::RemoteClosedWithError(it) | LinkStateError::RemoteDetachedWithError(it) => Some(it),
        _ => None,
    };
    let of_detach = |error: &'a DetachError| match error {
        DetachError::RemoteClosedWithError(it) | DetachError::RemoteDetachedWithError(it) => Some(it),
        _ => None,
    };
    if let Some(ReceiverAttachError::RemoteClosedWithError(it)) = error.downcast_ref() {
        return Some(it);
    }
    if let Some(SenderAttachError::RemoteClosedWithError(it)) = error.downcast_ref() {
        return Some(it);
    }
    if let Some(RecvError::LinkStateError(it)) = error.downcast_ref() {
        return of_link(it);
    }
    match error.downcast_ref() {
        Some(SendError::LinkStateError(it)) => return of_link(it),
        Some(SendError::Detached(it)) => return of_detach(it),
        _ => {}
    }
    match error.downcast_ref() {
        Some(PostError::LinkStateError(it)) => of_link(it),
        Some(PostError::Detached(it)) => of_detach(it),
        _ => error.downcast_ref().and_then(of_detach),
    }
}
