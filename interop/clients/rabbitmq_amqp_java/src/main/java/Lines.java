import com.rabbitmq.client.amqp.Message;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;

/** What the program says: a JSON object a line. */
final class Lines {
    private static final PrintStream OUT = new PrintStream(System.out, true, StandardCharsets.UTF_8);

    private Lines() {}

    static void say(String event, Object... values) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("event", event);
        for (int i = 0; i < values.length; i += 2) {
            line.put((String) values[i], values[i + 1]);
        }
        OUT.println(json(line));
    }

    static void say(Message message) {
        String body = new String(message.body(), StandardCharsets.UTF_8);
        say("message",
            "body", body.length() < 200 ? body : null,
            "size", body.length(),
            "n", message.hasProperty("n") ? message.property("n") : null,
            "colour", message.hasProperty("colour") ? message.property("colour") : null,
            "redelivered", message.deliveryCount() > 0,
            "delivery_count", message.deliveryCount(),
            "replay_id", message.hasAnnotation("x-opt-replay-id") ? message.annotation("x-opt-replay-id") : null,
            "replay_end", message.hasAnnotation("x-opt-replay-end"),
            "offset", message.hasAnnotation("x-stream-offset") ? message.annotation("x-stream-offset") : null);
    }

    private static String json(Object value) {
        if (value instanceof Map<?, ?> map) {
            StringBuilder text = new StringBuilder();
            map.forEach((key, each) ->
                text.append(text.isEmpty() ? "{" : ",").append(json(key)).append(":").append(json(each)));
            return (text.isEmpty() ? "{" : text) + "}";
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
