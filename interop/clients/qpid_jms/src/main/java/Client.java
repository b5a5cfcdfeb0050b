import jakarta.jms.*;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Enumeration;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.qpid.jms.JmsConnectionFactory;

/**
 * The client program on Apache Qpid JMS: plain Jakarta Messaging, but for the factory and the outcomes that JMS has no
 * word for (the client's own property JMS_AMQP_ACK_TYPE).
 */
public final class Client {
    private static final PrintStream OUT = new PrintStream(System.out, true, StandardCharsets.UTF_8);
    private static final int INDIVIDUAL_ACKNOWLEDGE = 101; // of Qpid JMS
    private static final Map<String, Integer> ACK_TYPES = Map.of("accept", 1, "reject", 2, "release", 3, "modify", 4);

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
            switch (verb) {
                case "send" -> send(connection);
                case "receive" -> receive(connection);
                case "browse" -> browse(connection);
                case "request" -> request(connection);
                case "reply" -> reply(connection);
                case "move" -> move(connection);
                case "unsubscribe" -> unsubscribe(connection);
                default -> throw new JMSException("JMS has no way to " + verb);
            }
            return 0;
        } catch (Exception error) {
            say("error", "kind", error.getClass().getSimpleName(), "text", String.valueOf(error.getMessage()));
            return 1;
        }
    }

    // ------------------------------------------------------------------------------------------------ the verbs

    private void send(Connection connection) throws JMSException {
        Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        Destination destination = destination(session);
        MessageProducer named = session.createProducer(destination);
        MessageProducer anonymous = session.createProducer(null);
        say("attached");
        int count = count();
        long delay = Long.parseLong(options.getOrDefault("delay", "0"));
        named.setDeliveryDelay(delay);
        anonymous.setDeliveryDelay(delay);
        for (int n = 0; n < count; n++) {
            // Persistent: returns once it is accepted, throws if it is not. Delayed, every second one has no link to a
            // node to see whether that keeps delays.
            if (delay > 0 && n % 2 == 1) {
                anonymous.send(destination, message(session, n));
            } else {
                named.send(message(session, n));
            }
            say("sent", "n", n, "outcome", "accepted");
        }
        say("end", "reason", "count", "count", count);
    }

    private void receive(Connection connection) throws JMSException {
        boolean ownOutcome = !options.getOrDefault("outcome", "accept").equals("accept");
        int mode = switch (options.getOrDefault("acknowledge", "auto")) {
            case "client" -> Session.CLIENT_ACKNOWLEDGE;
            case "dups-ok" -> Session.DUPS_OK_ACKNOWLEDGE;
            default -> ownOutcome ? INDIVIDUAL_ACKNOWLEDGE : Session.AUTO_ACKNOWLEDGE;
        };
        Session session = connection.createSession(false, mode);
        MessageConsumer consumer = consumer(session);
        connection.start();
        say("attached");
        int count = 0;
        Message message = null;
        String reason = "count";
        while (count < count()) {
            Message next;
            try {
                next = consumer.receive(timeout());
            } catch (JMSException error) {
                // The end of a bounded replay is a detach without an error: the library has only these words for it, and
                // wraps them where the detach comes between two calls.
                Throwable said = error.getCause() == null ? error : error.getCause();
                if (!String.valueOf(said.getMessage()).contains("Unknown error from remote peer")) {
                    throw error;
                }
                reason = "detached";
                break;
            }
            if (next == null) {
                reason = "timeout";
                break;
            }
            message = next;
            say(message);
            count++;
            Integer outcome = ACK_TYPES.get(options.getOrDefault("outcome", "accept"));
            if (ownOutcome && outcome != null) {
                message.setIntProperty("JMS_AMQP_ACK_TYPE", outcome);
                message.acknowledge();
            }
        }
        if (mode == Session.CLIENT_ACKNOWLEDGE && message != null) {
            message.acknowledge();
        }
        consumer.close();
        say("end", "reason", reason, "count", count);
    }

    /** The consumer for the terms that were asked for. */
    private MessageConsumer consumer(Session session) throws JMSException {
        String selector = options.get("selector");
        String subscription = options.get("subscription");
        Destination destination = destination(session);
        if (subscription == null) {
            return session.createConsumer(destination, selector);
        }
        boolean shared = options.containsKey("shared");
        boolean durable = options.containsKey("durable");
        Topic topic = (Topic) destination;
        if (shared && durable) {
            return session.createSharedDurableConsumer(topic, subscription, selector);
        }
        if (shared) {
            return session.createSharedConsumer(topic, subscription, selector);
        }
        return session.createDurableConsumer(topic, subscription, selector, false);
    }

    private void browse(Connection connection) throws JMSException {
        Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        connection.start();
        QueueBrowser browser = session.createBrowser((Queue) destination(session), options.get("selector"));
        Enumeration<?> found = browser.getEnumeration();
        say("attached");
        int count = 0;
        while (count < count() && found.hasMoreElements()) {
            say((Message) found.nextElement());
            count++;
        }
        browser.close();
        say("end", "reason", "count", "count", count);
    }

    private void request(Connection connection) throws JMSException {
        Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        TemporaryQueue replies = session.createTemporaryQueue();
        MessageConsumer consumer = session.createConsumer(replies);
        MessageProducer producer = session.createProducer(destination(session));
        connection.start();
        say("attached", "reply_to", replies.getQueueName());
        for (int n = 0; n < count(); n++) {
            Message asked = message(session, n);
            asked.setJMSReplyTo(replies);
            asked.setJMSCorrelationID("c-" + n);
            producer.send(asked);
            TextMessage reply = (TextMessage) consumer.receive(timeout());
            if (reply == null) {
                throw new JMSException("no reply came");
            }
            boolean correlated = ("c-" + n).equals(reply.getJMSCorrelationID());
            say("message", "body", reply.getText(), "n", n, "correlated", correlated);
        }
        consumer.close();
        replies.delete();
        say("end", "reason", "count", "count", count());
    }

    private void reply(Connection connection) throws JMSException {
        Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        MessageConsumer consumer = session.createConsumer(destination(session));
        MessageProducer producer = session.createProducer(null);
        connection.start();
        say("attached");
        for (int n = 0; n < count(); n++) {
            TextMessage asked = (TextMessage) consumer.receive(timeout());
            if (asked == null) {
                throw new JMSException("no request came");
            }
            Message answer = session.createTextMessage("re: " + asked.getText());
            answer.setJMSCorrelationID(asked.getJMSCorrelationID());
            producer.send(asked.getJMSReplyTo(), answer);
            say(asked);
        }
        say("end", "reason", "count", "count", count());
    }

    /** Messages from one queue to another in a transaction. */
    private void move(Connection connection) throws JMSException, InterruptedException {
        Session session = connection.createSession(true, Session.SESSION_TRANSACTED);
        MessageConsumer consumer = session.createConsumer(destination(session));
        MessageProducer producer = session.createProducer(session.createQueue(options.get("to").substring("queue://".length())));
        connection.start();
        say("attached");
        for (int n = 0; n < count(); n++) {
            Message message = consumer.receive(timeout());
            if (message == null) {
                throw new JMSException("no message came");
            }
            say(message);
            producer.send(message);
        }
        say("moved");
        switch (options.getOrDefault("end", "commit")) {
            case "commit" -> session.commit();
            case "rollback" -> session.rollback();
            default -> Thread.sleep(60_000); // until it is killed
        }
        say("end", "reason", "count", "count", count());
    }

    private void unsubscribe(Connection connection) throws JMSException {
        Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        say("attached");
        session.unsubscribe(options.get("subscription"));
        say("end", "reason", "count", "count", 0);
    }

    // ------------------------------------------------------------------------------------------------ its parts

    private Connection connect() throws JMSException {
        String url = options.get("url");
        boolean reconnects = options.containsKey("reconnect");
        JmsConnectionFactory factory = new JmsConnectionFactory(reconnects ? "failover:(" + url + ")" : url);
        // A client ID is one connection's at a time (Jakarta Messaging 3.1, 6.1.2), and the library asks for that: those
        // who share a subscription have none, and then it is everybody's.
        if (options.containsKey("container") && !options.containsKey("shared")) {
            factory.setClientID(options.get("container"));
        }
        // What is prefetched and not wanted, another consumer would miss. A browser asks page by page.
        // With outcomes of its own nothing is prefetched: what is given back would come again before the consumer goes.
        boolean ownOutcome = !options.getOrDefault("outcome", "accept").equals("accept");
        factory.setPrefetchPolicy(prefetch(verb.equals("browse") ? 100 : ownOutcome ? 0 : Math.max(1, count())));
        Connection connection = factory.createConnection();
        connection.start();
        return connection;
    }

    private static org.apache.qpid.jms.policy.JmsPrefetchPolicy prefetch(int count) {
        var policy = new org.apache.qpid.jms.policy.JmsDefaultPrefetchPolicy();
        policy.setAll(count);
        return policy;
    }

    /** queue:// and topic:// say what it is, as JMS has two sorts of destinations; anything else is called a queue. */
    private Destination destination(Session session) throws JMSException {
        String address = options.get("address");
        if (address.startsWith("topic://")) {
            return session.createTopic(address.substring("topic://".length()));
        }
        return session.createQueue(address.startsWith("queue://") ? address.substring("queue://".length()) : address);
    }

    private Message message(Session session, int n) throws JMSException {
        int size = Integer.parseInt(options.getOrDefault("size", "0"));
        String body = options.getOrDefault("body", "message") + "-" + n;
        Message message = session.createTextMessage(size > 0 ? "x".repeat(size) : body);
        message.setIntProperty("n", n);
        message.setStringProperty("colour", n % 2 == 1 ? "red" : "grün");
        if (options.containsKey("groups")) {
            message.setStringProperty("JMSXGroupID", "g" + n % Integer.parseInt(options.get("groups")));
        }
        return message;
    }

    private int count() {
        return Integer.parseInt(options.getOrDefault("count", "1"));
    }

    private long timeout() {
        return (long) (1000 * Double.parseDouble(options.getOrDefault("timeout", "5")));
    }

    // ------------------------------------------------------------------------------------------------ its lines

    private static void say(Message message) throws JMSException {
        String text = message.getBody(String.class);
        say("message",
            "body", text.length() < 200 ? text : null,
            "size", text.length(),
            "n", message.propertyExists("n") ? message.getIntProperty("n") : null,
            "colour", message.getStringProperty("colour"),
            "redelivered", message.getJMSRedelivered(),
            "delivery_count", message.getIntProperty("JMSXDeliveryCount") - 1,
            "delivery_time", message.getJMSDeliveryTime(),
            "replay_id", null,
            "replay_end", null);
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
