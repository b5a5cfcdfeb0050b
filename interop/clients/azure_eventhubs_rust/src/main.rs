//! The client program on Azure's Event Hubs client for Rust; its verbs and options are those of azure_eventhub.

mod store;

use azure_core::time::OffsetDateTime;
use azure_messaging_eventhubs::models::{
    AmqpSimpleValue, AmqpValue, EventData, MessageId, ReceivedEventData, StartPositions,
};
use azure_messaging_eventhubs::{
    ConsumerClient, EventDataBatchOptions, EventProcessor, OpenReceiverOptions, ProducerClient, RetryOptions,
    StartLocation, StartPosition,
};
use futures::{Stream, StreamExt};
use serde_json::{Value, json};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::error::Error;
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::{sleep, timeout};

const PATIENCE: Duration = Duration::from_secs(30);

type Fallible<T = ()> = Result<T, Box<dyn Error>>;

#[tokio::main]
async fn main() -> ExitCode {
    let options = Options::parse(std::env::args().skip(1));
    let deadline = Instant::now() + PATIENCE;
    loop {
        match options.run().await {
            Ok(()) => return ExitCode::SUCCESS,
            // Answered faster than it thinks, the library takes the end of its own session for an error, and closes its
            // connection: the program opens another, and goes on where it was.
            Err(error) if Instant::now() < deadline && options.is_lost(error.as_ref()) => {
                sleep(Duration::from_millis(100)).await;
            }
            Err(error) => {
                let text = error.to_string();
                say("error", json!({"kind": "EventHubsError", "condition": null, "info": {}, "text": text}));
                return ExitCode::FAILURE;
            }
        }
    }
}

struct Options {
    verb: String,
    given: HashMap<String, String>,
    done: Cell<usize>,             // events sent or received
    last: RefCell<Option<String>>, // offset of the last one
}

impl Options {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Self {
        let verb = arguments.next().expect("a verb");
        let mut given = HashMap::new();
        let mut arguments = arguments.peekable();
        while let Some(name) = arguments.next() {
            let value = arguments.next_if(|next| !next.starts_with("--")).unwrap_or_default();
            given.insert(name.trim_start_matches("--").to_owned(), value);
        }
        Self { verb, given, done: Cell::default(), last: RefCell::default() }
    }

    async fn run(&self) -> Fallible {
        match self.verb.as_str() {
            "send" => self.send().await,
            "properties" => self.properties().await,
            _ => self.events().await,
        }
    }

    fn is_lost(&self, error: &dyn Error) -> bool {
        self.has("reconnect") || error.to_string().contains("Connection dropped")
    }

    fn has(&self, name: &str) -> bool {
        self.given.contains_key(name)
    }

    fn of<'a>(&'a self, name: &str, otherwise: &'a str) -> &'a str {
        self.given.get(name).map_or(otherwise, String::as_str)
    }

    fn count(&self) -> usize {
        self.of("count", "1").parse().expect("a count")
    }

    fn timeout(&self) -> Duration {
        Duration::from_secs_f64(self.of("timeout", "5").parse().expect("seconds"))
    }

    /// The library knows no emulator: the endpoint it dials says that there is no TLS.
    fn connection_string(&self) -> String {
        format!(
            "Endpoint=sb://localhost;SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=SAS_KEY_VALUE;EntityPath={}",
            self.of("address", "").trim_start_matches("queue://"),
        )
    }

    fn retries(&self) -> RetryOptions {
        RetryOptions { max_retries: 0, ..RetryOptions::default() }
    }

    async fn consumer(&self) -> Fallible<ConsumerClient> {
        Ok(ConsumerClient::builder()
            .with_custom_endpoint(self.of("url", "").to_owned())
            .with_consumer_group(self.of("group", "$Default").to_owned())
            .with_retry_options(self.retries())
            .open_with_connection_string(&self.connection_string(), None)
            .await?)
    }

    /// Batches, each accepted before the next is sent.
    async fn send(&self) -> Fallible {
        let producer = ProducerClient::builder()
            .with_custom_endpoint(self.of("url", "").to_owned())
            .with_retry_options(self.retries())
            .open_with_connection_string(&self.connection_string(), None)
            .await?;
        say("attached", json!({}));
        let step = if self.has("together") { self.count() } else { 1 };
        for at in (self.done.get()..self.count()).step_by(step) {
            let terms =
                EventDataBatchOptions { partition_key: self.given.get("key").cloned(), ..Default::default() };
            let batch = producer.create_batch(Some(terms)).await?;
            for n in at..at + step {
                if !batch.try_add_event_data(self.event(n), None)? {
                    return Err(format!("the batch is full at event {n}").into());
                }
            }
            producer.send_batch(batch, None).await?;
            for n in at..at + step {
                say("sent", json!({"n": n, "outcome": "accepted"}));
            }
            self.done.set(at + step);
        }
        producer.close().await?;
        say("end", json!({"reason": "count", "count": self.count()}));
        Ok(())
    }

    fn event(&self, n: usize) -> EventData {
        let name = format!("{}-{n}", self.of("body", "message"));
        let size: usize = self.of("size", "0").parse().expect("a size");
        EventData::builder()
            .with_message_id(MessageId::from(name.clone()))
            .with_body(if size > 0 { "x".repeat(size) } else { name }.into_bytes())
            .add_property("n".to_owned(), n as i32)
            .add_property("colour".to_owned(), if n % 2 == 1 { "red" } else { "grün" })
            .build()
    }

    async fn properties(&self) -> Fallible {
        let consumer = self.consumer().await?;
        let hub = consumer.get_eventhub_properties().await?;
        say(
            "hub",
            json!({"name": hub.name, "partitions": hub.partition_ids, "created": hub.created_on.map(milliseconds)}),
        );
        let found = consumer.get_partition_properties(self.of("partition", "0")).await?;
        say(
            "partition",
            json!({
                "begin": found.beginning_sequence_number, "last": found.last_enqueued_sequence_number,
                "offset": found.last_enqueued_offset, "enqueued": found.last_enqueued_time_utc.map(milliseconds),
                "empty": found.is_empty,
            }),
        );
        say("end", json!({"reason": "count", "count": 0}));
        Ok(())
    }

    fn position(&self) -> StartPosition {
        if let Some(offset) = self.last.borrow().clone() {
            return StartPosition { location: StartLocation::Offset(offset), inclusive: false };
        }
        let (kind, value) =
            self.of("start", "latest").split_once(':').unwrap_or((self.of("start", "latest"), ""));
        let location = match kind {
            "beginning" => StartLocation::Earliest,
            "offset" => StartLocation::Offset(value.to_owned()),
            "sequence" => StartLocation::SequenceNumber(value.parse().expect("a number")),
            "date" => {
                let since = Duration::from_millis(value.parse().expect("milliseconds"));
                StartLocation::EnqueuedTime(std::time::UNIX_EPOCH + since)
            }
            _ => StartLocation::Latest,
        };
        StartPosition { location, inclusive: self.has("inclusive") }
    }

    /// From a partition, or behind the checkpoint in a file.
    async fn events(&self) -> Fallible {
        let consumer = self.consumer().await?;
        if self.has("store") {
            return self.process(consumer).await;
        }
        let terms = OpenReceiverOptions {
            owner_level: self.given.get("level").map(|level| level.parse().expect("a level")),
            start_position: Some(self.position()),
            ..Default::default()
        };
        let receiver =
            consumer.open_receiver_on_partition(self.of("partition", "0").to_owned(), Some(terms)).await?;
        self.read(receiver.stream_events(), async |_| Ok(())).await
    }

    async fn process(&self, consumer: ConsumerClient) -> Fallible {
        let store = Arc::new(store::FileStore::new(self.of("store", "")));
        let processor = EventProcessor::builder()
            .with_update_interval(azure_core::time::Duration::seconds(1))
            .with_start_positions(StartPositions { default: self.position(), ..Default::default() })
            .build(consumer, store)
            .await?;
        let running = processor.clone();
        tokio::spawn(async move { running.run().await });
        let partition = processor.next_partition_client().await?;
        self.read(partition.stream_events(), async |event| Ok(partition.update_checkpoint(event).await?))
            .await?;
        processor.shutdown().await?;
        Ok(())
    }

    /// Until there are enough, or none comes in time; each event is handed to `keep`.
    async fn read(
        &self,
        events: impl Stream<Item = azure_messaging_eventhubs::Result<ReceivedEventData>>,
        keep: impl AsyncFn(&ReceivedEventData) -> Fallible,
    ) -> Fallible {
        let mut events = pin!(events.peekable());
        // Attached, the connection may still be lost to what was before; then nothing was attached.
        if let Ok(Some(Err(_))) = timeout(Duration::from_millis(300), events.as_mut().peek()).await {
            return Err(events.next().await.expect("it is there").expect_err("and is an error").into());
        }
        say("attached", json!({}));
        let mut reason = "count";
        while self.done.get() < self.count() {
            match timeout(self.timeout(), events.next()).await {
                Err(_) => reason = "timeout",
                Ok(None) => reason = "detached",
                Ok(Some(event)) => {
                    let event = event?;
                    show(&event);
                    self.last.replace(event.offset().clone());
                    self.done.set(self.done.get() + 1);
                    keep(&event).await?;
                    continue;
                }
            }
            break;
        }
        say("end", json!({"reason": reason, "count": self.done.get()}));
        Ok(())
    }
}

fn milliseconds(time: std::time::SystemTime) -> i128 {
    OffsetDateTime::from(time).unix_timestamp_nanos() / 1_000_000
}

fn show(event: &ReceivedEventData) {
    let data = event.event_data();
    let body = String::from_utf8_lossy(data.body().unwrap_or_default()).into_owned();
    let property = |name: &str| match data.properties().and_then(|found| found.get(name)) {
        Some(AmqpSimpleValue::Int(n)) => json!(n),
        Some(AmqpSimpleValue::String(text)) => json!(text),
        _ => Value::Null,
    };
    let annotations = event.system_properties();
    let replay_id = match annotations.get("x-opt-replay-id") {
        Some(AmqpValue::String(text)) => json!(text),
        _ => Value::Null,
    };
    say(
        "message",
        json!({
            "body": (body.len() < 200).then_some(&body), "size": body.len(), "n": property("n"),
            "colour": property("colour"), "redelivered": false, "delivery_count": 0, "replay_id": replay_id,
            "replay_end": annotations.get("x-opt-replay-end") == Some(&AmqpValue::Boolean(true)),
            "offset": event.offset(), "sequence": event.sequence_number(),
            "enqueued": event.enqueued_time().map(milliseconds), "key": event.partition_key(),
        }),
    );
}

fn say(event: &str, mut values: Value) {
    values["event"] = json!(event);
    println!("{values}");
}
