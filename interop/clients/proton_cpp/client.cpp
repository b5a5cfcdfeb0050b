// The client program on Qpid Proton C++: handlers, described values for its own filter, and its own reconnecting.

#include <proton/codec/encoder.hpp>
#include <proton/connection.hpp>
#include <proton/connection_options.hpp>
#include <proton/container.hpp>
#include <proton/delivery.hpp>
#include <proton/error_condition.hpp>
#include <proton/map.hpp>
#include <proton/message.hpp>
#include <proton/messaging_handler.hpp>
#include <proton/receiver_options.hpp>
#include <proton/reconnect_options.hpp>
#include <proton/sender_options.hpp>
#include <proton/source_options.hpp>
#include <proton/symbol.hpp>
#include <proton/target.hpp>
#include <proton/target_options.hpp>
#include <proton/timestamp.hpp>
#include <proton/tracker.hpp>
#include <proton/transport.hpp>
#include <proton/types.hpp>
#include <proton/work_queue.hpp>

#include <cstdio>
#include <deque>
#include <iostream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace {

const std::set<std::string> FLAGS = {"durable", "shared", "reconnect"};

struct Options {
    std::string verb;
    std::map<std::string, std::string> given;

    Options(int argc, char** argv) : verb(argc > 1 ? argv[1] : "") {
        for (int i = 2; i < argc; ++i) {
            const std::string name = std::string(argv[i]).substr(2);
            given[name] = FLAGS.count(name) ? "yes" : argv[++i];
        }
    }
    bool has(const std::string& name) const { return given.count(name) > 0; }
    std::string get(const std::string& name, const std::string& otherwise = "") const {
        const auto found = given.find(name);
        return found == given.end() ? otherwise : found->second;
    }
    int number(const std::string& name, int otherwise) const {
        return has(name) ? std::stoi(get(name)) : otherwise;
    }
};

// ---- a line of JSON

std::string quoted(const std::string& text) {
    std::ostringstream out;
    out << '"';
    for (const unsigned char c : text) {
        char code[8];
        if (c == '"' || c == '\\') out << '\\' << c;
        else if (c < 0x20) { std::snprintf(code, sizeof code, "\\u%04x", c); out << code; }
        else out << c;
    }
    out << '"';
    return out.str();
}

class Line {
    std::string text_;

  public:
    explicit Line(const std::string& event) { raw("event", quoted(event)); }
    ~Line() { std::cout << "{" << text_ << "}" << std::endl; }
    Line& raw(const std::string& key, const std::string& value) {
        text_ += (text_.empty() ? "" : ", ") + quoted(key) + ": " + value;
        return *this;
    }
    Line& put(const std::string& key, const std::string& value) { return raw(key, quoted(value)); }
    Line& put(const std::string& key, int value) { return raw(key, std::to_string(value)); }
    Line& put(const std::string& key, bool value) { return raw(key, value ? "true" : "false"); }
};

// ---- messages and filters

proton::message make_message(const Options& options, int n) {
    const int size = options.number("size", 0);
    const std::string name = options.get("body", "message") + "-" + std::to_string(n);
    proton::message made(size ? std::string(size, 'x') : name);
    made.id(name);
    made.durable(true);
    made.properties().put("n", n);
    made.properties().put("colour", n % 2 ? "red" : "grün");
    if (const int delay = options.number("delay", 0))
        made.message_annotations().put(proton::symbol("x-opt-delivery-delay"), std::int64_t(delay));
    if (const int groups = options.number("groups", 0))
        made.group_id("g" + std::to_string(n % groups));
    return made;
}

void show(const proton::message& message) {
    const auto body = proton::get<std::string>(message.body());
    const auto& annotations = message.message_annotations();
    const auto& properties = message.properties();
    Line line("message");
    line.raw("body", body.size() < 200 ? quoted(body) : "null").put("size", int(body.size()));
    if (properties.exists("n")) line.put("n", proton::coerce<int>(properties.get("n")));
    if (properties.exists("colour")) line.put("colour", proton::coerce<std::string>(properties.get("colour")));
    line.put("redelivered", message.delivery_count() > 0).put("delivery_count", int(message.delivery_count()));
    const proton::symbol id("x-opt-replay-id"), end("x-opt-replay-end");
    line.raw("replay_id", annotations.exists(id) ? quoted(proton::get<std::string>(annotations.get(id))) : "null");
    line.put("replay_end", annotations.exists(end) && proton::get<bool>(annotations.get(end)));
}

template <typename T> proton::value described(const std::string& descriptor, const T& value) {
    proton::value made;
    proton::codec::encoder encoder(made);
    encoder << proton::codec::start::described() << proton::symbol(descriptor) << value << proton::codec::finish();
    return made;
}

proton::source_options source_of(const Options& options) {
    proton::source_options terms;
    proton::source::filter_map filters;
    if (options.has("durable"))
        terms.durability_mode(proton::source::UNSETTLED_STATE).expiry_policy(proton::source::NEVER);
    if (options.has("shared")) terms.capabilities({proton::symbol("shared")});
    if (options.verb == "browse") terms.distribution_mode(proton::source::COPY);
    if (options.has("selector"))
        filters.put("selector", described("apache.org:selector-filter:string", options.get("selector")));
    if (options.has("start") && options.has("until")) {
        const std::map<proton::symbol, proton::symbol> terms_of_start = {
            {"from", options.get("start")}, {"until", options.get("until")}};
        filters.put("start", described("rewind:replay-start", terms_of_start));
    } else if (options.has("start")) {
        filters.put("start", described("rewind:replay-start", options.get("start")));
    }
    return terms.filters(filters);
}

std::string plain(const std::map<proton::symbol, proton::value>& properties) {
    std::string text;
    for (const auto& [key, value] : properties)
        text += (text.empty() ? "" : ", ") + quoted(key) + ": " + quoted(proton::to_string(value));
    return "{" + text + "}";
}

// ---- programs

class Program : public proton::messaging_handler {
  public:
    explicit Program(const Options& options)
        : options(options), wanted(options.number("count", 1)), timeout(options.number("timeout", 5) * 1000) {}
    int status = 0;

    void on_container_start(proton::container& container) override {
        proton::connection_options terms;
        if (options.has("container")) terms.container_id(options.get("container"));
        // The library goes on waiting, once it was told that the gateway stops, until its heartbeat fails.
        if (options.has("reconnect"))
            terms.reconnect(proton::reconnect_options()).idle_timeout(proton::duration(4000));
        container.connect(options.get("url"), terms);
    }

    void on_connection_open(proton::connection& opened) override {
        connection = opened;
        if (opened.reconnected()) again();
        else open_links();
    }

    void on_sender_error(proton::sender& link) override { fail("sender_error", link.error()); }
    void on_receiver_error(proton::receiver& link) override { fail("receiver_error", link.error()); }
    void on_connection_error(proton::connection& failed) override { fail("connection_error", failed.error()); }
    void on_transport_error(proton::transport& failed) override {
        if (!options.has("reconnect")) fail("transport_error", failed.error());
    }
    void on_error(const proton::error_condition& error) override { fail("error", error); }

  protected:
    const Options options;
    const int wanted;
    const proton::duration timeout;
    proton::connection connection;
    proton::receiver receiver;
    std::vector<proton::delivery> kept;
    int count = 0;
    bool ended = false;

    virtual void open_links() = 0;
    virtual void again() {}

    /// Begin to wait anew for whatever comes next.
    void tick() {
        deadline_ = proton::timestamp::now() + timeout;
        if (!is_watching_) watch();
    }

    void settle(proton::delivery delivery) {
        const auto outcome = options.get("outcome", "accept");
        if (outcome == "accept") delivery.accept();
        else if (outcome == "reject") delivery.reject();
        else if (outcome == "release") delivery.release();
        else delivery.modify();
    }

    void end(const std::string& reason) {
        if (ended) return;
        ended = true;
        if (options.get("outcome", "accept") != "none") {
            for (auto& delivery : kept) settle(delivery);
            if (receiver) {
                if (options.has("durable")) receiver.detach();
                else receiver.close();
            }
        }
        Line("end").put("reason", reason).put("count", count);
        connection.close();
    }

    void fail(const std::string& kind, const proton::error_condition& error) {
        if (ended) return;
        ended = true;
        status = 1;
        Line("error").put("kind", kind).put("condition", error.name()).raw("info", info_of(error)).put(
            "text", error.description());
        if (connection) connection.close();
    }

  private:
    proton::timestamp deadline_;
    bool is_watching_ = false;

    /// In short turns: nothing takes a timer back, and the container lives until its last one.
    void watch() {
        is_watching_ = !ended;
        if (ended) return;
        if (proton::timestamp::now() >= deadline_) return end("timeout");
        connection.work_queue().schedule(proton::duration(100), [this]() { watch(); });
    }

    static std::string info_of(const proton::error_condition& error) {
        if (error.properties().empty()) return "{}";
        return plain(proton::get<std::map<proton::symbol, proton::value>>(error.properties()));
    }
};

/// Messages, each with its outcome; what had none when a connection was lost is sent again.
class Send : public Program {
    std::map<proton::binary, int> numbers_;
    std::deque<int> waiting_;
    uint32_t tags_ = 0;

  public:
    using Program::Program;

    void open_links() override {
        for (int n = 0; n < wanted; ++n) waiting_.push_back(n);
        connection.open_sender(options.get("address"));
    }
    void again() override {
        for (auto found = numbers_.rbegin(); found != numbers_.rend(); ++found) waiting_.push_front(found->second);
        numbers_.clear();
    }
    void on_sender_open(proton::sender& sender) override {
        if (!sender.target().address().empty()) Line("attached");
    }
    void on_sendable(proton::sender& sender) override {
        while (!waiting_.empty() && sender.credit() > 0) {
            const std::string text = std::to_string(++tags_);
            const proton::binary tag(text);
            numbers_[tag] = waiting_.front();
            sender.send(make_message(options, waiting_.front()), tag);
            waiting_.pop_front();
        }
    }
    void on_tracker_settle(proton::tracker& tracker) override {
        const auto found = numbers_.find(tracker.tag());
        if (found == numbers_.end()) return;
        Line("sent").put("n", found->second).put("outcome", proton::to_string(tracker.state()));
        numbers_.erase(found);
        if (++count == wanted) end("count");
    }
};

/// Receive, browse and replay.
class Receive : public Program {
  public:
    using Program::Program;

    void open_links() override {
        auto source = source_of(options);
        proton::receiver_options terms;
        terms.source(source).credit_window(0).auto_accept(false);
        if (options.has("subscription")) terms.name(options.get("subscription"));
        receiver = connection.open_receiver(options.get("address"), terms);
    }
    void on_receiver_open(proton::receiver& opened) override {
        if (opened.source().address().empty()) return;  // refused: what is wrong comes with the detach
        Line("attached").raw("properties", plain(opened.properties()));
        if (count >= wanted) return end("count");
        opened.add_credit(wanted - count);
        tick();
    }
    void on_message(proton::delivery& delivery, proton::message& message) override {
        if (ended) return;
        show(message);
        ++count;
        tick();
        if (options.get("outcome") == "none") return;
        if (options.get("acknowledge", "auto") == "auto") settle(delivery);
        else kept.push_back(delivery);
        if (count >= wanted) end("count");
    }
    void on_receiver_close(proton::receiver& closed) override {
        if (closed.error().empty()) end("detached");
    }
};

/// Requests, one at a time, answered on a temporary queue.
class Request : public Program {
    proton::sender sender_;

    void ask() {
        auto asked = make_message(options, count);
        asked.reply_to(receiver.source().address());
        asked.correlation_id("c-" + std::to_string(count));
        sender_.send(asked);
        tick();
    }

  public:
    using Program::Program;

    void open_links() override {
        proton::source_options source;
        source.dynamic(true);
        receiver = connection.open_receiver("", proton::receiver_options().source(source).auto_accept(false));
    }
    void on_receiver_open(proton::receiver& opened) override {
        Line("attached").put("reply_to", opened.source().address());
        sender_ = connection.open_sender(options.get("address"));
    }
    void on_sender_open(proton::sender&) override { ask(); }
    void on_message(proton::delivery& delivery, proton::message& reply) override {
        const auto correlated = reply.correlation_id() == proton::message_id("c-" + std::to_string(count));
        Line("message").put("body", proton::get<std::string>(reply.body())).put("n", count).put("correlated", correlated);
        delivery.accept();
        if (++count == wanted) end("count");
        else ask();
    }
};

/// Answers to the address that each request names.
class Reply : public Program {
    proton::sender relay_;

  public:
    using Program::Program;

    void open_links() override {
        proton::target_options nowhere;
        nowhere.anonymous(true);
        relay_ = connection.open_sender("", proton::sender_options().target(nowhere));
        receiver = connection.open_receiver(options.get("address"), proton::receiver_options().auto_accept(false));
    }
    void on_receiver_open(proton::receiver&) override {
        Line("attached");
        tick();
    }
    void on_message(proton::delivery& delivery, proton::message& asked) override {
        proton::message answer("re: " + proton::get<std::string>(asked.body()));
        answer.to(asked.reply_to());
        answer.correlation_id(asked.correlation_id());
        relay_.send(answer);
        delivery.accept();
        show(asked);
    }
    void on_tracker_settle(proton::tracker&) override {
        if (++count == wanted) end("count");
    }
};

/// Attach by the subscription's name without a source, and close.
class Unsubscribe : public Program {
  public:
    using Program::Program;

    void open_links() override {
        proton::source_options nothing;
        nothing.anonymous(true);
        connection.open_receiver(
            "", proton::receiver_options().source(nothing).name(options.get("subscription")).credit_window(0));
    }
    void on_receiver_open(proton::receiver& opened) override {
        Line("attached");
        opened.close();
    }
    void on_receiver_close(proton::receiver& closed) override {
        if (closed.error().empty()) end("count");
    }
};

template <typename P> int run(const Options& options) {
    P program(options);
    proton::container(program).run();
    return program.status;
}

}  // namespace

int main(int argc, char** argv) {
    const Options options(argc, argv);
    if (options.verb == "send") return run<Send>(options);
    if (options.verb == "request") return run<Request>(options);
    if (options.verb == "reply") return run<Reply>(options);
    if (options.verb == "unsubscribe") return run<Unsubscribe>(options);
    return run<Receive>(options);
}
