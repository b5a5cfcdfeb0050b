import com.rabbitmq.client.amqp.AddressBuilder;
import com.rabbitmq.client.amqp.AmqpException;
import com.rabbitmq.client.amqp.BackOffDelayPolicy;
import com.rabbitmq.client.amqp.Connection;
import com.rabbitmq.client.amqp.ConnectionSettings;
import com.rabbitmq.client.amqp.Consumer;
import com.rabbitmq.client.amqp.ConsumerBuilder;
import com.rabbitmq.client.amqp.Environment;
import com.rabbitmq.client.amqp.Message;
import com.rabbitmq.client.amqp.Publisher;
import com.rabbitmq.client.amqp.Requester;
import com.rabbitmq.client.amqp.Responder;
import com.rabbitmq.client.amqp.impl.AmqpEnvironmentBuilder;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;

/**
 * The client program on RabbitMQ's AMQP 1.0 client for Java; see interop/client.py for its command line, and
 * interop/clients/rabbitmq_amqp_python/client.py for the verbs that clients of RabbitMQ have beside it.
 *
 * <p>Knows nothing of the gateway: what is here, a user of the library would write for RabbitMQ. Recovery is the
 * library's.
 */
public final class Client {
    private static final long PATIENCE_MS = 40_000; // in which a lost connection has to come back

    private final String verb;
    private final Map<String, String> options = new HashMap<>();

    private record Delivery(Consumer.Context context, Message message) {}

    private Client(String[] arguments) {
        verb = arguments[0];
        for (int i = 1; i < arguments.length; i++) {
            boolean hasValue = i + 1 < arguments.length && !arguments[i + 1].startsWith("--");
            options.put(arguments[i].substring(2), hasValue ? arguments[++i] : "");
        }
    }

    public static void main(String[] arguments) {
        System.exit(new Client(arguments).run());
    }

    private int run() {
        var settings = new AmqpEnvironmentBuilder().connectionSettings().uri(options.get("url"));
        if (verb.equals("renew")) {
            settings.oauth2().tokenEndpointUri(options.get("endpoint")).clientId("java").clientSecret("secret")
                .grantType("client_credentials");
        } else {
            settings.saslMechanism(ConnectionSettings.SASL_MECHANISM_ANONYMOUS);
        }
        Environment environment = settings.environmentBuilder().build();
        try (environment) {
            Connection connection = environment.connectionBuilder().recovery()
                .activated(options.containsKey("reconnect"))
                .backOffDelayPolicy(BackOffDelayPolicy.fixed(Duration.ofMillis(500)))
                .connectionBuilder().build();
            switch (verb) {
                case "send" -> send(connection);
                case "receive", "stream" -> receive(connection, nameOf(options.get("address")));
                case "own" -> receive(connection, topology(connection).own());
                case "request" -> request(connection);
                case "reply" -> reply(connection);
                case "renew" -> {
                    send(connection);
                    Thread.sleep(Long.parseLong(options.get("timeout")) * 1_000);
                    send(connection);
                }
                default -> topology(connection).run(verb);
            }
            return 0;
        } catch (Exception error) {
            Lines.say("error", "kind", error.getClass().getSimpleName(), "text", String.valueOf(error.getMessage()));
            return 1;
        }
    }

    private Topology topology(Connection connection) {
        return new Topology(connection.management(), options);
    }

    // ------------------------------------------------------------------------------------------------ publishing

    private void send(Connection connection) throws Exception {
        var builder = connection.publisherBuilder();
        address(builder);
        Publisher publisher = builder.build();
        Lines.say("attached");
        long deadline = System.currentTimeMillis() + PATIENCE_MS;
        for (int n = 0; n < count();) {
            CompletableFuture<Publisher.Context> outcome = new CompletableFuture<>();
            Throwable failure = null;
            try {
                publisher.publish(message(publisher.message(), n), outcome::complete);
                failure = outcome.get(10, TimeUnit.SECONDS).failureCause();
            } catch (AmqpException error) {
                failure = error;
            }
            if (failure == null || failure instanceof AmqpException.AmqpMessageRejectedException) {
                String status = outcome.join().status().name().toLowerCase(Locale.ROOT);
                Lines.say("sent", "n", n++, "outcome", status, "text", failure == null ? "" : failure.getMessage());
            } else if (options.containsKey("reconnect") && System.currentTimeMillis() < deadline) {
                Thread.sleep(100); // until the library has made its link anew
            } else {
                throw new AmqpException(failure);
            }
        }
        Lines.say("end", "reason", "count", "count", count());
    }

    private <T extends AddressBuilder<T>> void address(T builder) {
        String address = options.get("address");
        if (address.startsWith("queue://")) {
            builder.queue(nameOf(address));
        } else if (address.startsWith("exchange://")) {
            String[] parts = nameOf(address).split("/", 2);
            builder.exchange(parts[0]).key(parts.length > 1 ? parts[1] : "");
        } else {
            throw new IllegalArgumentException("the library has no address for " + address);
        }
    }

    static String nameOf(String address) {
        return address.substring(address.indexOf("://") + 3);
    }

    private Message message(Message message, int n) {
        String body = options.getOrDefault("body", "message") + "-" + n;
        int size = Integer.parseInt(options.getOrDefault("size", "0"));
        message.body((size > 0 ? "x".repeat(size) : body).getBytes(StandardCharsets.UTF_8))
            .messageId(body).property("n", n).property("colour", n % 2 == 0 ? "grün" : "red");
        if (options.containsKey("value")) {
            message.annotation("x-stream-filter-value", options.get("value"));
        }
        if (options.containsKey("delay")) {
            message.annotation("x-opt-delivery-delay", Long.parseLong(options.get("delay")));
        }
        if (options.containsKey("groups")) {
            message.groupId("g" + n % Integer.parseInt(options.get("groups")));
        }
        if (options.containsKey("subject")) {
            message.subject(options.get("subject"));
        }
        return message;
    }

    // ------------------------------------------------------------------------------------------------- receiving

    private void receive(Connection connection, String queue) throws Exception {
        BlockingQueue<Delivery> arrived = new LinkedBlockingQueue<>();
        AtomicLong last = new AtomicLong(-1);
        ConsumerBuilder builder = connection.consumerBuilder().queue(queue).initialCredits(Math.max(1, count()))
            .messageHandler((context, message) -> arrived.add(new Delivery(context, message)));
        boolean isSettled = options.containsKey("settled");
        if (isSettled) {
            builder.preSettled();
        }
        if (options.containsKey("priority")) {
            builder.priority(Integer.parseInt(options.get("priority")));
        }
        if (verb.equals("stream")) {
            filters(builder);
            builder.subscriptionListener(subscribing -> {
                if (last.get() >= 0) {
                    subscribing.streamOptions().offset(last.get() + 1); // where it was when the connection was lost
                }
            });
        }
        Consumer consumer = builder.build();
        Lines.say("attached");
        String outcome = options.getOrDefault("outcome", "accept");
        boolean isAtTheEnd = "client".equals(options.get("acknowledge"));
        List<Delivery> kept = new ArrayList<>();
        String reason = "count";
        int count = 0;
        while (count < count()) {
            Delivery delivery = arrived.poll(timeout(), TimeUnit.MILLISECONDS);
            if (delivery == null) {
                reason = "timeout";
                break;
            }
            Lines.say(delivery.message);
            count++;
            if (delivery.message.hasAnnotation("x-stream-offset")) {
                last.set((Long) delivery.message.annotation("x-stream-offset"));
            }
            if (isAtTheEnd) {
                kept.add(delivery);
            } else if (!isSettled) {
                settle(consumer, delivery.context, outcome);
            }
        }
        for (Delivery each : kept) {
            settle(consumer, each.context, outcome);
        }
        consumer.close();
        Lines.say("end", "reason", reason, "count", count);
    }

    private void settle(Consumer consumer, Consumer.Context context, String outcome) {
        switch (outcome) {
            case "accept" -> context.accept();
            case "reject" -> context.discard();
            case "release" -> {
                consumer.pause(); // or it would come to this consumer again before that can close
                context.requeue();
            }
            case "modify" -> {
                consumer.pause();
                context.requeue(Map.of("x-opt-why", "tried"), true);
            }
            case "later" -> context.delayedRetry(Duration.ofMillis(Long.parseLong(options.get("delay"))));
            default -> {}
        }
    }

    private void filters(ConsumerBuilder builder) {
        ConsumerBuilder.StreamOptions stream = builder.stream();
        String start = options.get("start");
        if (List.of("first", "last", "next").contains(start)) {
            stream.offset(ConsumerBuilder.StreamOffsetSpecification.valueOf(start.toUpperCase(Locale.ROOT)));
        } else if (start.startsWith("date:")) {
            stream.offset(Instant.ofEpochMilli(Long.parseLong(start.substring(5))));
        } else if (start.matches("\\d+")) {
            stream.offset(Long.parseLong(start));
        } else {
            stream.offset(start);
        }
        if (options.containsKey("values")) {
            stream.filterValues(options.get("values").split(","));
        }
        if (options.containsKey("unfiltered")) {
            stream.filterMatchUnfiltered(true);
        }
        if (options.containsKey("subject")) {
            stream.filter().subject(options.get("subject"));
        }
        if (options.containsKey("property")) {
            String[] property = options.get("property").split("=", 2);
            stream.filter().property(property[0], property[1]);
        }
        if (options.containsKey("sql")) {
            stream.filter().sql(options.get("sql"));
        }
    }

    // --------------------------------------------------------------------------------------- requests and replies

    /** Answers come on a queue that the gateway makes for it, or on one that is declared for them. */
    private void request(Connection connection) throws Exception {
        var builder = connection.requesterBuilder().requestAddress().queue(nameOf(options.get("address"))).requester();
        if ("queue".equals(options.get("kind"))) {
            builder.replyToQueue(connection.management().queue().exclusive(true).autoDelete(true).declare().name());
        }
        Requester requester = builder.build();
        Lines.say("attached");
        for (int n = 0; n < count(); n++) {
            Message asked = message(requester.message(), n);
            Message reply = requester.publish(asked).get(timeout(), TimeUnit.MILLISECONDS);
            String body = new String(reply.body(), StandardCharsets.UTF_8);
            boolean isCorrelated = reply.correlationId().equals(asked.messageId());
            Lines.say("message", "body", body, "n", n, "correlated", isCorrelated);
        }
        requester.close();
        Lines.say("end", "reason", "count", "count", count());
    }

    private void reply(Connection connection) throws Exception {
        CountDownLatch asked = new CountDownLatch(count());
        Responder responder = connection.responderBuilder().requestQueue(nameOf(options.get("address")))
            .handler((context, request) -> {
                if (!context.isRequesterAlive(request)) {
                    throw new IllegalStateException("who asks is not there any more");
                }
                asked.countDown();
                String body = "re: " + new String(request.body(), StandardCharsets.UTF_8);
                return context.message(body.getBytes(StandardCharsets.UTF_8));
            }).build();
        Lines.say("attached");
        boolean isDone = asked.await(timeout(), TimeUnit.MILLISECONDS);
        responder.close(); // once the last reply is settled
        Lines.say("end", "reason", isDone ? "count" : "timeout", "count", count() - asked.getCount());
    }

    private int count() {
        return Integer.parseInt(options.getOrDefault("count", "1"));
    }

    private long timeout() {
        return (long) (Double.parseDouble(options.getOrDefault("timeout", "5")) * 1000);
    }
}
