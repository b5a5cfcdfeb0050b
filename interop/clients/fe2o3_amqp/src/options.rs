//! The command line, and the terms of a link that follow from it.

use fe2o3_amqp::types::messaging::{
    AmqpValue, ApplicationProperties, DistributionMode, Header, Message, MessageAnnotations, Properties, Source,
    TerminusDurability, TerminusExpiryPolicy,
};
use fe2o3_amqp::types::primitives::{OrderedMap, SimpleValue, Symbol, Value};
use serde_amqp::{described::Described, descriptor::Descriptor};
use std::collections::HashMap;
use std::time::Duration;

pub struct Options {
    pub verb: String,
    given: HashMap<String, String>,
}

impl Options {
    pub fn parse(mut arguments: impl Iterator<Item = String>) -> Self {
        let verb = arguments.next().unwrap_or_default();
        let mut given = HashMap::new();
        let mut arguments = arguments.peekable();
        while let Some(name) = arguments.next() {
            let value = arguments.next_if(|next| !next.starts_with("--"));
            given.insert(name.trim_start_matches('-').to_owned(), value.unwrap_or_default());
        }
        Self { verb, given }
    }

    pub fn has(&self, name: &str) -> bool {
        self.given.contains_key(name)
    }

    pub fn of<'a>(&'a self, name: &str, otherwise: &'a str) -> &'a str {
        self.given.get(name).map_or(otherwise, String::as_str)
    }

    pub fn number<T: std::str::FromStr>(&self, name: &str, otherwise: T) -> T {
        self.of(name, "").parse().unwrap_or(otherwise)
    }

    pub fn count(&self) -> u32 {
        self.number("count", 1)
    }

    pub fn timeout(&self) -> Duration {
        Duration::from_secs_f64(self.number("timeout", 5.0))
    }

    pub fn message(&self, n: u32) -> Message<AmqpValue<String>> {
        let size = self.number("size", 0);
        let id = format!("{}-{n}", self.of("body", "message"));
        let colour = if n % 2 == 1 { "red" } else { "grün" };
        let properties = ApplicationProperties::builder()
            .insert("n", SimpleValue::Int(n as i32))
            .insert("colour", SimpleValue::String(colour.to_owned()));
        let delay = self.of("delay", "").parse::<i64>().ok().map(|delay| {
            MessageAnnotations::builder()
                .insert("x-opt-delivery-delay", delay)
                .build()
        });
        let groups = self.number("groups", 0);
        let group = (groups > 0).then(|| format!("g{}", n % groups));
        Message::builder()
            .message_annotations(delay)
            .header(Header::builder().durable(true).build())
            .properties(Properties::builder().message_id(id.clone()).group_id(group).build())
            .application_properties(properties.build())
            .value(if size > 0 { "x".repeat(size) } else { id })
            .build()
    }

    /// The source with the terms that were asked for.
    pub fn source(&self) -> Source {
        let mut source = Source::builder().address(self.of("address", "")).build();
        if self.has("durable") {
            source.durable = TerminusDurability::UnsettledState;
            source.expiry_policy = TerminusExpiryPolicy::Never;
        }
        if self.has("shared") {
            source.capabilities = Some(vec![Symbol::from("shared")].into());
        }
        if self.verb == "browse" {
            source.distribution_mode = Some(DistributionMode::Copy);
        }
        let mut filters = OrderedMap::new();
        if self.has("selector") {
            let selector = Value::String(self.of("selector", "").to_owned());
            filters
                .insert(Symbol::from("selector"), described("apache.org:selector-filter:string", selector));
        }
        if self.has("start") {
            let text = |name| Value::String(self.of(name, "").to_owned());
            let mut start = text("start");
            if self.has("until") {
                let key = |name| Value::Symbol(Symbol::from(name));
                start = Value::Map(
                    [(key("from"), text("start")), (key("until"), text("until"))].into_iter().collect(),
                );
            }
            filters.insert(Symbol::from("start"), described("rewind:replay-start", start));
        }
        if !filters.is_empty() {
            source.filter = Some(filters);
        }
        source
    }
}

fn described(descriptor: &str, value: Value) -> Value {
    let descriptor = Descriptor::Name(Symbol::from(descriptor));
    Value::Described(Box::new(Described { descriptor, value }))
}
