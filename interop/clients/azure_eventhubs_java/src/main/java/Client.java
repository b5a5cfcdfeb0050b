import com.azure.core.amqp.AmqpRetryMode;
import com.azure.core.amqp.AmqpRetryOptions;
import com.azure.core.amqp.exception.AmqpException;
import com.azure.messaging.eventhubs.CheckpointStore;
import com.azure.messaging.eventhubs.EventData;
import com.azure.messaging.eventhubs.EventDataBatch;
import com.azure.messaging.eventhubs.EventHubClientBuilder;
import com.azure.messaging.eventhubs.EventHubProperties;
import com.azure.messaging.eventhubs.EventProcessorClient;
import com.azure.messaging.eventhubs.EventProcessorClientBuilder;
import com.azure.messaging.eventhubs.PartitionProperties;
import com.azure.messaging.eventhubs.models.Checkpoint;
import com.azure.messaging.eventhubs.models.CreateBatchOptions;
import com.azure.messaging.eventhubs.models.EventPosition;
import com.azure.messaging.eventhubs.models.PartitionOwnership;
import com.azure.messaging.eventhubs.models.ReceiveOptions;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import reactor.core.Disposable;
import reactor.core.publisher.Flux;
import reactor.core.publisher.Mono;

/** The client program on Azure's Event Hubs client for Java; its verbs and options are those of azure_eventhub. */
public final class Client {
    private static final PrintStream OUT = new PrintStream(System.out, true, StandardCharsets.UTF_8);

    private static final Object END = new Object();
    private static volatile boolean isAttached;

    private final String verb;
    private final Map<String, String> options = new HashMap<>();
    private final BlockingQueue<Object> heard = new LinkedBlockingQueue<>(); // events, and what went wrong

    private Client(String[] arguments) {
        verb = arguments[0];
        for (int i = 1; i < arguments.length; i++) {
            boolean hasValue = i + 1 < arguments.length && !arguments[i + 1].startsWith("--");
            options.put(arguments[i].substring(2), hasValue ? arguments[++i] : "");
        }
    }

    public static void main(String[] arguments) {
        listenToTheLog();
        System.exit(new Client(arguments).run());
    }

    private int run() {
        try {
            switch (verb) {
                case "send" -> send();
                case "properties" -> properties();
                default -> events();
            }
            return 0;
        } catch (Throwable error) {
            String condition = null;
            for (Throwable each = error; each != null && condition == null; each = each.getCause()) {
                if (each instanceof AmqpException amqp && amqp.getErrorCondition() != null) {
                    condition = amqp.getErrorCondition().getErrorCondition();
                }
            }
            say("error", "kind", error.getClass().getSimpleName(), "condition", condition,
                "text", String.valueOf(error.getMessage()));
            return 1;
        }
    }

    // ------------------------------------------------------------------------------------------------ the verbs

    /** Batches, each accepted before the next is sent. */
    private void send() {
        try (var producer = builder().buildProducerClient()) {
            say("attached");
            int step = options.containsKey("together") ? count() : 1;
            for (int at = 0; at < count(); at += step) {
                EventDataBatch batch = producer.createBatch(new CreateBatchOptions().setPartitionKey(options.get("key")));
                for (int n = at; n < at + step; n++) {
                    if (!batch.tryAdd(event(n))) {
                        throw new IllegalStateException("the batch is full at event " + n);
                    }
                }
                producer.send(batch);
                for (int n = at; n < at + step; n++) {
                    say("sent", "n", n, "outcome", "accepted");
                }
            }
        }
        say("end", "reason", "count", "count", count());
    }

    private void properties() {
        try (var consumer = builder().buildConsumerClient()) {
            EventHubProperties hub = consumer.getEventHubProperties();
            say("hub", "name", hub.getName(), "partitions", hub.getPartitionIds().stream().toList(),
                "created", hub.getCreatedAt().toEpochMilli());
            PartitionProperties found = consumer.getPartitionProperties(partition());
            say("partition", "begin", found.getBeginningSequenceNumber(), "last", found.getLastEnqueuedSequenceNumber(),
                "offset", found.getLastEnqueuedOffset(), "enqueued", found.getLastEnqueuedTime().toEpochMilli(),
                "empty", found.isEmpty());
        }
        say("end", "reason", "count", "count", 0);
    }

    /** Events until there are enough, or none comes in time. */
    private void events() throws Throwable {
        // A partition's receiver ends with its connection; the processor goes on behind its checkpoint.
        boolean isKept = options.containsKey("store") || options.containsKey("reconnect");
        Disposable reading = isKept ? process() : receive();
        int count = 0;
        String reason = "count";
        while (count < count()) {
            // The time counts from the attach, which takes a loaded machine seconds.
            while (!isAttached && heard.isEmpty()) {
                Thread.sleep(20);
            }
            Object next = heard.poll(timeout(), TimeUnit.MILLISECONDS);
            if (next instanceof Throwable error) {
                throw error;
            }
            if (next == null || next == END) {
                reason = next == null ? "timeout" : "detached";
                break;
            }
            show((EventData) next);
            count++;
        }
        reading.dispose();
        say("end", "reason", reason, "count", count);
    }

    private Disposable receive() {
        ReceiveOptions terms = new ReceiveOptions().setTrackLastEnqueuedEventProperties(true);
        if (options.containsKey("level")) {
            terms.setOwnerLevel(Long.valueOf(options.get("level")));
        }
        var consumer = builder().prefetchCount(10).buildAsyncConsumerClient();
        Disposable reading = consumer.receiveFromPartition(partition(), position(), terms)
            .subscribe(event -> heard.add(event.getData()), heard::add, () -> heard.add(END));
        return () -> {
            reading.dispose();
            consumer.close();
        };
    }

    /** Goes on behind the checkpoint in a file; what is behind those that are wanted, gets none. */
    private Disposable process() throws IOException {
        Path path = options.containsKey("store") ? Path.of(options.get("store")) : null;
        int[] left = {count()};
        EventProcessorClient processor = new EventProcessorClientBuilder().connectionString(connectionString())
            .consumerGroup(group())
            .retryOptions(retries())
            .loadBalancingUpdateInterval(Duration.ofSeconds(1))
            .checkpointStore(new Store(path))
            .initialPartitionEventPosition(partition -> position())
            .processEvent(context -> {
                if (left[0]-- > 0) {
                    context.updateCheckpoint();
                    heard.add(context.getEventData());
                }
            })
            .processError(context -> {
                // While the gateway is away; the library begins again by itself.
                if (options.containsKey("reconnect")) {
                    say("again", "text", context.getThrowable().getMessage());
                } else {
                    heard.add(context.getThrowable());
                }
            })
            .buildEventProcessorClient();
        processor.start();
        return processor::stop;
    }

    // ------------------------------------------------------------------------------------------------ their parts

    /** As users of the emulator have it. */
    private String connectionString() {
        return "Endpoint=sb://" + URI.create(options.get("url")).getAuthority()
            + ";SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=SAS_KEY_VALUE"
            + ";UseDevelopmentEmulator=true;EntityPath=" + options.get("address").replace("queue://", "");
    }

    private EventHubClientBuilder builder() {
        return new EventHubClientBuilder().connectionString(connectionString())
            .consumerGroup(group())
            .retryOptions(retries());
    }

    private AmqpRetryOptions retries() {
        return new AmqpRetryOptions().setMode(AmqpRetryMode.FIXED)
            .setDelay(Duration.ofMillis(200))
            .setMaxRetries(options.containsKey("reconnect") ? 50 : 0)
            .setTryTimeout(Duration.ofSeconds(10));
    }

    private EventData event(int n) {
        int size = Integer.parseInt(options.getOrDefault("size", "0"));
        String name = options.getOrDefault("body", "message") + "-" + n;
        EventData event = new EventData(size > 0 ? "x".repeat(size) : name);
        event.setMessageId(name);
        event.getProperties().put("n", n);
        event.getProperties().put("colour", n % 2 == 1 ? "red" : "grün");
        return event;
    }

    private EventPosition position() {
        String[] start = options.getOrDefault("start", "latest").split(":", 2);
        return switch (start[0]) {
            case "beginning" -> EventPosition.earliest();
            case "offset" -> EventPosition.fromOffsetString(start[1]);
            case "sequence" -> EventPosition.fromSequenceNumber(Long.parseLong(start[1]), options.containsKey("inclusive"));
            case "date" -> EventPosition.fromEnqueuedTime(Instant.ofEpochMilli(Long.parseLong(start[1])));
            default -> EventPosition.latest();
        };
    }

    private String group() {
        return options.getOrDefault("group", EventHubClientBuilder.DEFAULT_CONSUMER_GROUP_NAME);
    }

    private String partition() {
        return options.getOrDefault("partition", "0");
    }

    private int count() {
        return Integer.parseInt(options.getOrDefault("count", "1"));
    }

    private long timeout() {
        return (long) (1000 * Double.parseDouble(options.getOrDefault("timeout", "5")));
    }

    /** The last checkpoint, in a file where one is named; one program at a time reads, and owns what it claims. */
    private static final class Store implements CheckpointStore {
        private final Path path;
        private volatile List<PartitionOwnership> owned = List.of();
        private volatile Long offset; // the library says no other to it

        Store(Path path) throws IOException {
            this.path = path;
            offset = path != null && Files.exists(path) ? Long.valueOf(Files.readString(path)) : null;
        }

        @Override
        public Flux<PartitionOwnership> listOwnership(String namespace, String hub, String group) {
            return Flux.defer(() -> Flux.fromIterable(owned));
        }

        @Override
        public Flux<PartitionOwnership> claimOwnership(List<PartitionOwnership> requested) {
            owned = List.copyOf(requested);
            owned.forEach(one -> one.setLastModifiedTime(System.currentTimeMillis()).setETag("e"));
            return Flux.fromIterable(owned);
        }

        @Override
        public Flux<Checkpoint> listCheckpoints(String namespace, String hub, String group) {
            return Flux.defer(() -> offset == null ? Flux.empty() : Flux.just(new Checkpoint()
                .setFullyQualifiedNamespace(namespace)
                .setEventHubName(hub)
                .setConsumerGroup(group)
                .setPartitionId("0")
                .setOffset(offset)));
        }

        @Override
        public Mono<Void> updateCheckpoint(Checkpoint checkpoint) {
            return Mono.fromCallable(() -> {
                offset = checkpoint.getOffset();
                return path == null ? null : Files.writeString(path, offset.toString());
            }).then();
        }
    }

    // ------------------------------------------------------------------------------------------------ their lines

    /** That a receiver is attached, the library says in its log and nowhere else. */
    private static void listenToTheLog() {
        System.setProperty("AZURE_LOG_LEVEL", "informational");
        System.setOut(new PrintStream(new ByteArrayOutputStream() {
            @Override
            public synchronized void flush() throws IOException {
                String text = toString(StandardCharsets.UTF_8);
                reset();
                if (text.contains("onLinkRemoteOpen") && text.contains("/Partitions/") && text.contains("remoteSource")) {
                    isAttached = true;
                    say("attached");
                }
            }
        }, true, StandardCharsets.UTF_8));
    }

    private static void show(EventData event) {
        String text = event.getBodyAsString();
        Map<String, Object> annotations = event.getSystemProperties();
        say("message",
            "body", text.length() < 200 ? text : null,
            "size", text.length(),
            "n", event.getProperties().get("n"),
            "colour", event.getProperties().get("colour"),
            "redelivered", false,
            "delivery_count", 0,
            "replay_id", annotations.get("x-opt-replay-id"),
            "replay_end", Boolean.TRUE.equals(annotations.get("x-opt-replay-end")),
            "offset", event.getOffsetString(),
            "sequence", event.getSequenceNumber(),
            "enqueued", event.getEnqueuedTime().toEpochMilli(),
            "key", event.getPartitionKey());
    }

    private static void say(String event, Object... values) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("event", event);
        for (int i = 0; i < values.length; i += 2) {
            line.put((String) values[i], values[i + 1]);
        }
        StringBuilder text = new StringBuilder();
        line.forEach((key, value) -> text.append(text.isEmpty() ? "{" : ",").append(json(key)).append(":").append(json(value)));
        OUT.println(text.append("}"));
    }

    private static String json(Object value) {
        if (value instanceof List<?> list) {
            return list.stream().map(Client::json).toList().toString();
        }
        if (!(value instanceof String text)) {
            return String.valueOf(value);
        }
        StringBuilder quoted = new StringBuilder("\"");
        for (char each : text.toCharArray()) {
            if (each == '"' || each == '\\') {
                quoted.append('\\').append(each);
            } else if (each < ' ') {
                quoted.append(String.format("\\u%04x", (int) each));
            } else {
                quoted.append(each);
            }
        }
        return quoted.append('"').toString();
    }
}
