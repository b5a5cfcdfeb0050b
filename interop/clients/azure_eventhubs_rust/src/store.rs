//! Checkpoints in a file; one program at a time reads, and owns what it claims.

use async_trait::async_trait;
use azure_core::http::Etag;
use azure_core::time::OffsetDateTime;
use azure_messaging_eventhubs::CheckpointStore;
use azure_messaging_eventhubs::models::{Checkpoint, Ownership};
use std::path::PathBuf;
use std::sync::Mutex;

type Answer<T> = azure_core::Result<T>;

pub struct FileStore {
    path: PathBuf,
    owned: Mutex<Vec<Ownership>>,
}

impl FileStore {
    pub fn new(path: &str) -> Self {
        Self { path: path.into(), owned: Mutex::default() }
    }
}

#[async_trait]
impl CheckpointStore for FileStore {
    async fn claim_ownership(&self, wanted: &[Ownership]) -> Answer<Vec<Ownership>> {
        let mut owned = self.owned.lock().expect("no panic");
        *owned = wanted.to_vec();
        for one in owned.iter_mut() {
            one.etag = Some(Etag::from("e"));
            one.last_modified_time = Some(OffsetDateTime::now_utc());
        }
        Ok(owned.clone())
    }

    async fn list_ownerships(&self, _: &str, _: &str, _: &str) -> Answer<Vec<Ownership>> {
        Ok(self.owned.lock().expect("no panic").clone())
    }

    async fn list_checkpoints(&self, namespace: &str, hub: &str, group: &str) -> Answer<Vec<Checkpoint>> {
        let Ok(offset) = std::fs::read_to_string(&self.path) else {
            return Ok(Vec::new());
        };
        Ok(vec![Checkpoint {
            fully_qualified_namespace: namespace.to_owned(),
            event_hub_name: hub.to_owned(),
            consumer_group: group.to_owned(),
            partition_id: "0".to_owned(),
            offset: Some(offset),
            sequence_number: None,
        }])
    }

    async fn update_checkpoint(&self, reached: Checkpoint) -> Answer<()> {
        let offset = reached.offset.expect("an event has an offset");
        std::fs::write(&self.path, offset).map_err(azure_core::Error::from)?;
        Ok(())
    }
}
