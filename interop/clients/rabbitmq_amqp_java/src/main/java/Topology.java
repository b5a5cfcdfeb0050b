import com.rabbitmq.client.amqp.ByteCapacity;
import com.rabbitmq.client.amqp.Management;
import java.time.Duration;
import java.util.Map;
import java.util.TreeMap;

/** What is asked of /management. */
final class Topology {
    private final Management management;
    private final Map<String, String> options;
    private final String name;

    Topology(Management management, Map<String, String> options) {
        this.management = management;
        this.options = options;
        this.name = Client.nameOf(options.get("address"));
    }

    void run(String verb) {
        String[] exchangeAndKey = name.split("/", 2);
        switch (verb) {
            case "declare" -> declare();
            case "bind" -> management.binding().sourceExchange(exchangeAndKey[0]).key(exchangeAndKey[1])
                .destinationQueue(options.get("queue")).bind();
            case "unbind" -> management.unbind().sourceExchange(exchangeAndKey[0]).key(exchangeAndKey[1])
                .destinationQueue(options.get("queue")).unbind();
            case "describe" -> say(management.queueInfo(name));
            case "purge" -> Lines.say("queue", "messages", management.queuePurge(name).messageCount());
            case "delete" -> {
                if ("exchange".equals(options.get("kind"))) {
                    management.exchangeDelete(name);
                } else {
                    management.queueDelete(name);
                }
            }
            default -> throw new IllegalArgumentException("the library has no way to " + verb);
        }
        Lines.say("end", "reason", "count", "count", 0);
    }

    /** A queue that goes with its connection; the library finds a name where there is none. */
    String own() {
        Management.QueueInfo info = management.queue(name.isEmpty() ? null : name).exclusive(true).autoDelete(true).declare();
        say(info);
        return info.name();
    }

    private void declare() {
        String[] argument = options.getOrDefault("argument", "").split("=", 2);
        switch (options.getOrDefault("kind", "queue")) {
            case "stream" -> management.queue(name).stream().maxAge(Duration.ofDays(1)).queue()
                .maxLengthBytes(ByteCapacity.GB(1)).declare();
            case "exchange" -> management.exchange(name).type(Management.ExchangeType.TOPIC).declare();
            default -> {
                Management.QueueSpecification queue = management.queue(name).type(Management.QueueType.QUORUM);
                switch (argument[0]) {
                    case "max_len" -> queue.maxLength(Long.parseLong(argument[1]));
                    case "overflow_behaviour" -> queue.overflowStrategy(argument[1]);
                    case "single_active_consumer" -> queue.singleActiveConsumer(true);
                    case "delayed_retry" -> queue.quorum().delayedRetryType(Management.DelayedRetryType.FAILED)
                        .delayedRetryMin(Duration.ofMillis(Long.parseLong(argument[1])));
                    case "consumer_timeout" -> queue.quorum().consumerTimeout(Duration.ofMillis(Long.parseLong(argument[1])));
                    default -> {}
                }
                queue.declare();
            }
        }
    }

    private static void say(Management.QueueInfo info) {
        Map<String, Object> arguments = new TreeMap<>();
        info.arguments().forEach((key, value) -> arguments.put(key, String.valueOf(value)));
        Lines.say("queue",
            "name", info.name(),
            "kind", String.valueOf(info.type()).toLowerCase(),
            "messages", info.messageCount(),
            "consumers", info.consumerCount(),
            "exclusive", info.exclusive(),
            "auto_delete", info.autoDelete(),
            "arguments", arguments);
    }
}
