import java.io.IOException;
import java.io.PrintStream;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.qpid.protonj2.client.Connection;
import org.apache.qpid.protonj2.client.ConnectionOptions;
import org.apache.qpid.protonj2.client.Delivery;
import org.apache.qpid.protonj2.client.DistributionMode;
import org.apache.qpid.protonj2.client.ErrorCondition;
import org.apache.qpid.protonj2.client.Message;
import org.apache.qpid.protonj2.client.Receiver;
import org.apache.qpid.protonj2.client.ReceiverOptions;
import org.apache.qpid.protonj2.client.Sender;
import org.apache.qpid.protonj2.client.Session;
import org.apache.qpid.protonj2.client.SourceOptions;
import org.apache.qpid.protonj2.client.exceptions.ClientConnectionRemotelyClosedException;
import org.apache.qpid.protonj2.client.exceptions.ClientException;
import org.apache.qpid.protonj2.client.exceptions.ClientLinkRemotelyClosedException;
import org.apache.qpid.protonj2.client.exceptions.ClientResourceRemotelyClosedException;
import org.apache.qpid.protonj2.types.Symbol;

/** The client program on Apache Qpid ProtonJ2: blocking calls, filters by name, its own reconnecting. */
public final class Client {
    private static final PrintStream OUT = new PrintStream(System.out, true, StandardCharsets.UTF_8);

    private final String verb;
    private final Map<String, String> options = new HashMap<>();

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
        try (Connection connection = connect()) {
            Session session = connection.openSession();
            switch (verb) {
                case "send" -> send(session);
                case "receive", "browse", "replay" -> receive(session);
                case "request" -> request(session);
                case "reply" -> reply(session);
                case "move" -> move(session);
                case "unsubscribe" -> unsubscribe(session);
                default -> throw new ClientException("no verb " + verb);
            }
            return 0;
        } catch (ExecutionException error) {
            fail(error.getCause());
        } catch (Exception error) {
            fail(error);
        }
        return 1;
    }

    // ------------------------------------------------------------------------------------------------ the verbs

    private void send(Session session) throws Exception {
        Sender sender = session.openSender(address());
        sender.openFuture().get();
        say("attached");
        for (int n = 0; n < count(); n++) {
            String outcome;
            try {
                outcome = sender.send(message(n)).awaitSettlement().remoteState().getType().name().toLowerCase();
            } catch (ClientException error) {
                if (!options.containsKey("reconnect") || !isLost(error)) {
                    throw error;
                }
                n--; // the connection is being made anew: what the gateway has not answered is sent again
                continue;
            }
            say("sent", "n", n, "outcome", outcome);
        }
        sender.close();
        say("end", "reason", "count", "count", count());
    }

    /** Whether the connection went: at the moment it does, the library may say no more than what the socket said. */
    private static boolean isLost(ClientException error) {
        return error instanceof ClientConnectionRemotelyClosedException || error.getCause() instanceof IOException;
    }

    private void receive(Session session) throws Exception {
        String subscription = options.get("subscription");
        Receiver receiver = subscription != null && options.containsKey("durable")
            ? session.openDurableReceiver(address(), subscription, terms())
            : session.openReceiver(address(), terms().linkName(subscription));
        receiver.openFuture().get();
        say("attached");
        int count = 0;
        String reason = "count";
        List<Delivery> kept = new ArrayList<>();
        if (count() > 0 && terms().creditWindow() == 0) {
            receiver.addCredit(count());
        }
        while (count < count()) {
            Delivery delivery;
            try {
                delivery = receiver.receive(timeout(), TimeUnit.MILLISECONDS);
            } catch (ClientLinkRemotelyClosedException error) {
                if (error.getErrorCondition() != null) {
                    throw error;
                }
                reason = "detached";
                break;
            }
            if (delivery == null) {
                reason = "timeout";
                break;
            }
            show(delivery.message());
            count++;
            if (options.getOrDefault("acknowledge", "auto").equals("auto")) {
                settle(delivery);
            } else {
                kept.add(delivery);
            }
        }
        for (Delivery delivery : kept) {
            settle(delivery);
        }
        receiver.close();
        say("end", "reason", reason, "count", count);
    }

    private void settle(Delivery delivery) throws ClientException {
        switch (options.getOrDefault("outcome", "accept")) {
            case "none" -> { }
            case "reject" -> delivery.reject("example:no", "not this one");
            case "release" -> delivery.release();
            case "modify" -> delivery.modified(true, false);
            default -> delivery.accept();
        }
    }

    private void request(Session session) throws Exception {
        Receiver replies = session.openDynamicReceiver();
        Sender sender = session.openSender(address());
        String replyTo = replies.address(); // waits until it is attached
        say("attached", "reply_to", replyTo);
        for (int n = 0; n < count(); n++) {
            sender.send(message(n).replyTo(replyTo).correlationId("c-" + n)).awaitAccepted();
            Message<String> reply = next(replies).message();
            say("message", "body", reply.body(), "n", n, "correlated", ("c-" + n).equals(reply.correlationId()));
        }
        replies.close();
        say("end", "reason", "count", "count", count());
    }

    private void reply(Session session) throws Exception {
        Receiver receiver = session.openReceiver(address());
        Sender sender = session.openAnonymousSender();
        receiver.openFuture().get();
        say("attached");
        for (int n = 0; n < count(); n++) {
            Message<String> asked = next(receiver).message();
            show(asked);
            Message<String> answer = Message.create("re: " + asked.body());
            sender.send(answer.to(asked.replyTo()).correlationId(asked.correlationId())).awaitAccepted();
        }
        say("end", "reason", "count", "count", count());
    }

    /** Messages from one queue to another in a transaction; what is received is accepted in it by itself. */
    private void move(Session session) throws Exception {
        Receiver receiver = session.openReceiver(address());
        Sender sender = session.openSender(options.get("to"));
        receiver.openFuture().get();
        say("attached");
        session.beginTransaction();
        for (int n = 0; n < count(); n++) {
            Message<String> message = next(receiver).message();
            show(message);
            sender.send(message);
        }
        say("moved");
        switch (options.getOrDefault("end", "commit")) {
            case "commit" -> session.commitTransaction();
            case "rollback" -> session.rollbackTransaction();
            default -> Thread.sleep(60_000); // until it is killed
        }
        say("end", "reason", "count", "count", count());
    }

    /** Attaches without an address, and closes: the library wants an address, and takes an empty one. */
    private void unsubscribe(Session session) throws Exception {
        Receiver receiver = session.openReceiver("", new ReceiverOptions().linkName(options.get("subscription")).creditWindow(0));
        receiver.openFuture().get();
        say("attached");
        receiver.close();
        say("end", "reason", "count", "count", 0);
    }

    // ------------------------------------------------------------------------------------------------ its parts

    private Connection connect() throws ClientException {
        String[] gateways = options.get("url").split(",");
        URI url = URI.create(gateways[0]);
        var terms = new org.apache.qpid.protonj2.client.ClientOptions().id(options.get("container"));
        var client = org.apache.qpid.protonj2.client.Client.create(terms);
        ConnectionOptions connection = new ConnectionOptions().reconnectEnabled(options.containsKey("reconnect"));
        for (int i = 1; i < gateways.length; i++) {
            URI other = URI.create(gateways[i]);
            connection.reconnectOptions().addReconnectLocation(other.getHost(), other.getPort());
        }
        return client.connect(url.getHost(), url.getPort(), connection);
    }

    /** The terms of a source. Credit is given by hand, but where the library is to give it again by itself. */
    private ReceiverOptions terms() {
        ReceiverOptions terms = new ReceiverOptions().autoAccept(false).autoSettle(false);
        terms.creditWindow(options.containsKey("reconnect") ? count() : 0);
        SourceOptions source = terms.sourceOptions();
        if (verb.equals("browse")) {
            source.distributionMode(DistributionMode.COPY);
        }
        if (options.containsKey("shared")) {
            source.capabilities("shared");
        }
        if (options.containsKey("selector")) {
            source.addFilter("selector", Symbol.valueOf("apache.org:selector-filter:string"), options.get("selector"));
        }
        if (options.containsKey("start")) {
            Object start = options.get("start");
            if (options.containsKey("until")) {
                start = Map.of(Symbol.valueOf("from"), start, Symbol.valueOf("until"), options.get("until"));
            }
            source.addFilter("start", Symbol.valueOf("rewind:replay-start"), start);
        }
        return terms;
    }

    private Message<String> message(int n) throws ClientException {
        int size = Integer.parseInt(options.getOrDefault("size", "0"));
        String id = options.getOrDefault("body", "message") + "-" + n;
        Message<String> made = Message.create(size > 0 ? "x".repeat(size) : id)
            .durable(true)
            .messageId(id)
            .property("n", n)
            .property("colour", n % 2 == 1 ? "red" : "grün");
        if (options.containsKey("delay")) {
            made.annotation("x-opt-delivery-delay", Long.parseLong(options.get("delay")));
        }
        if (options.containsKey("groups")) {
            made.groupId("g" + n % Integer.parseInt(options.get("groups")));
        }
        return made;
    }

    private Delivery next(Receiver receiver) throws ClientException {
        Delivery delivery = receiver.receive(timeout(), TimeUnit.MILLISECONDS);
        if (delivery == null) {
            throw new ClientException("no message came");
        }
        return delivery;
    }

    private String address() {
        return options.get("address");
    }

    private int count() {
        return Integer.parseInt(options.getOrDefault("count", "1"));
    }

    private long timeout() {
        return (long) (1000 * Double.parseDouble(options.getOrDefault("timeout", "5")));
    }

    // ------------------------------------------------------------------------------------------------ its lines

    private static void show(Message<String> message) throws ClientException {
        String text = message.body();
        say("message",
            "body", text.length() < 200 ? text : null,
            "size", text.length(),
            "n", message.property("n"),
            "colour", message.property("colour"),
            "redelivered", message.deliveryCount() > 0,
            "delivery_count", message.deliveryCount(),
            "replay_id", message.annotation("x-opt-replay-id"),
            "replay_end", Boolean.TRUE.equals(message.annotation("x-opt-replay-end")));
    }

    /** An error as a user of the library sees it. */
    private static void fail(Throwable error) {
        ErrorCondition said = error instanceof ClientResourceRemotelyClosedException it ? it.getErrorCondition() : null;
        say("error",
            "kind", error.getClass().getSimpleName(),
            "condition", said == null ? null : said.condition(),
            "info", said == null || said.info() == null ? Map.of() : said.info(),
            "text", said == null ? String.valueOf(error.getMessage()) : said.description());
    }

    private static void say(String event, Object... values) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("event", event);
        for (int i = 0; i < values.length; i += 2) {
            line.put((String) values[i], values[i + 1]);
        }
        OUT.println(json(line));
    }

    private static String json(Object value) {
        if (value instanceof Map<?, ?> map) {
            List<String> entries = new ArrayList<>();
            map.forEach((key, each) -> entries.add(json(key.toString()) + ":" + json(each)));
            return "{" + String.join(",", entries) + "}";
        }
        if (value == null || value instanceof Number || value instanceof Boolean) {
            return String.valueOf(value);
        }
        StringBuilder quoted = new StringBuilder("\"");
        for (char each : value.toString().toCharArray()) {
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
