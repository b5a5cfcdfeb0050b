// The client program on RabbitMQ's AMQP 1.0 client for Go; see interop/client.py for its command line, and
// interop/clients/rabbitmq_amqp_python/client.py for the verbs that clients of RabbitMQ have beside it.
//
// Knows nothing of the gateway: what is here, a user of the library would write for RabbitMQ. Recovery is the library's.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/Azure/go-amqp"
	rmq "github.com/rabbitmq/rabbitmq-amqp-go-client/pkg/rabbitmqamqp"
)

const patience = 40 * time.Second // in which a lost connection has to come back

type line map[string]any

func say(event string, values line) {
	if values == nil {
		values = line{}
	}
	values["event"] = event
	json.NewEncoder(os.Stdout).Encode(values)
}

// failure shows an error as a user of the library sees it.
func failure(err error) line {
	shown := line{"kind": fmt.Sprintf("%T", err), "condition": nil, "info": line{}, "text": err.Error()}
	var remote *amqp.Error
	var link *amqp.LinkError
	if errors.As(err, &link) {
		remote = link.RemoteErr
	} else {
		errors.As(err, &remote)
	}
	if remote != nil {
		info := line{}
		for key, value := range remote.Info {
			info[key] = value
		}
		shown["condition"], shown["text"], shown["info"] = remote.Condition, remote.Description, info
	}
	return shown
}

// ---- addresses, messages

// target is the library's address: of a queue, or of an exchange and a key.
func target(address string) (rmq.ITargetAddress, error) {
	kind, name, _ := strings.Cut(address, "://")
	switch kind {
	case "queue":
		return &rmq.QueueAddress{Queue: name}, nil
	case "exchange":
		exchange, key, _ := strings.Cut(name, "/")
		return &rmq.ExchangeAddress{Exchange: exchange, Key: key}, nil
	}
	return nil, fmt.Errorf("the library has no address for %s", address)
}

func nameOf(address string) string {
	_, name, _ := strings.Cut(address, "://")
	return name
}

func message(o options, n int) *amqp.Message {
	body := fmt.Sprintf("%s-%d", o.body, n)
	made := rmq.NewMessage([]byte(body))
	made.Properties = &amqp.MessageProperties{MessageID: body}
	if o.size > 0 {
		made.Data[0] = []byte(strings.Repeat("x", o.size))
	}
	colour := "grün"
	if n%2 == 1 {
		colour = "red"
	}
	made.ApplicationProperties = map[string]any{"n": int32(n), "colour": colour}
	if o.value != "" {
		made.Annotations = amqp.Annotations{rmq.StreamFilterValue: o.value}
	}
	if o.delay > 0 {
		made.Annotations = amqp.Annotations{"x-opt-delivery-delay": int64(o.delay)}
	}
	if o.groups > 0 {
		group := fmt.Sprintf("g%d", n%o.groups)
		made.Properties.GroupID = &group
	}
	if o.subject != "" {
		made.Properties.Subject = &o.subject
	}
	return made
}

func show(m *amqp.Message) {
	body := string(m.GetData())
	values := line{
		"body": body, "size": len(body), "n": m.ApplicationProperties["n"],
		"colour": m.ApplicationProperties["colour"], "delivery_count": 0, "redelivered": false,
		"replay_id": m.Annotations["x-opt-replay-id"], "replay_end": m.Annotations["x-opt-replay-end"] == true,
		"offset": m.Annotations["x-stream-offset"],
	}
	if len(body) >= 200 {
		values["body"] = nil
	}
	if m.Header != nil {
		values["delivery_count"], values["redelivered"] = m.Header.DeliveryCount, m.Header.DeliveryCount > 0
	}
	say("message", values)
}

// ---- publishing

func outcomeOf(state rmq.DeliveryState) string {
	switch state.(type) {
	case *rmq.StateAccepted:
		return "accepted"
	case *rmq.StateRejected:
		return "rejected"
	case *rmq.StateReleased:
		return "released"
	}
	return fmt.Sprintf("%T", state)
}

func send(ctx context.Context, o options, connection *rmq.AmqpConnection) error {
	address, err := target(o.address)
	if err != nil {
		return err
	}
	publisher, err := connection.NewPublisher(ctx, address, nil)
	if err != nil {
		return err
	}
	say("attached", nil)
	for n := 0; n < o.count; {
		result, err := publisher.Publish(ctx, message(o, n))
		if err != nil {
			if !o.reconnect || ctx.Err() != nil {
				return err
			}
			time.Sleep(100 * time.Millisecond) // until the library has made its link anew
			continue
		}
		say("sent", line{"n": n, "outcome": outcomeOf(result.Outcome)})
		n++
	}
	say("end", line{"reason": "count", "count": o.count})
	return nil
}

// renew sends a message by the first token, shows the next one, and sends another when the first has expired.
func renew(ctx context.Context, o options, connection *rmq.AmqpConnection) error {
	if err := send(ctx, o, connection); err != nil {
		return err
	}
	if err := connection.RefreshToken(ctx, o.next); err != nil {
		return err
	}
	time.Sleep(time.Duration(o.timeout) * time.Second)
	return send(ctx, o, connection)
}

// ---- receiving

func settle(ctx context.Context, o options, delivery rmq.IDeliveryContext) error {
	switch o.outcome {
	case "accept":
		return delivery.Accept(ctx)
	case "reject":
		return delivery.Discard(ctx, nil)
	case "release":
		return delivery.Requeue(ctx)
	case "modify":
		return delivery.DiscardWithAnnotations(ctx, amqp.Annotations{"x-opt-why": "tried"})
	}
	if o.outcome == "later" {
		at := time.Now().Add(time.Duration(o.delay) * time.Millisecond).UnixMilli()
		return delivery.RequeueWithAnnotations(ctx, amqp.Annotations{"x-opt-delivery-time": at})
	}
	return nil
}

func consumerOptions(o options) (rmq.IConsumerOptions, error) {
	if o.verb != "stream" {
		terms := &rmq.ConsumerOptions{InitialCredits: int32(max(1, o.count))}
		if o.settled {
			terms.SettleStrategy = rmq.PreSettled
		}
		return terms, nil
	}
	offset, err := offsetOf(o.start)
	if err != nil {
		return nil, err
	}
	filters := &rmq.StreamFilterOptions{MatchUnfiltered: o.unfiltered, SQL: o.sql}
	if o.values != "" {
		filters.Values = strings.Split(o.values, ",")
	}
	if name, value, isThere := strings.Cut(o.property, "="); isThere {
		filters.ApplicationProperties = map[string]any{name: value}
	}
	if o.subject != "" {
		filters.Properties = &amqp.MessageProperties{Subject: &o.subject}
	}
	return &rmq.StreamConsumerOptions{Offset: offset, StreamFilterOptions: filters}, nil
}

func offsetOf(start string) (rmq.IOffsetSpecification, error) {
	switch start {
	case "first":
		return &rmq.OffsetFirst{}, nil
	case "last":
		return &rmq.OffsetLast{}, nil
	case "next":
		return &rmq.OffsetNext{}, nil
	}
	value := &rmq.OffsetValue{}
	if _, err := fmt.Sscanf(start, "%d", &value.Offset); err != nil {
		return nil, fmt.Errorf("the library has no offset %s", start)
	}
	return value, nil
}

func receive(ctx context.Context, o options, connection *rmq.AmqpConnection) error {
	terms, err := consumerOptions(o)
	if err != nil {
		return err
	}
	consumer, err := connection.NewConsumer(ctx, nameOf(o.address), terms)
	if err != nil {
		return err
	}
	say("attached", nil)
	reason := "count"
	var kept []rmq.IDeliveryContext
	count := 0
	for heard := time.Now(); count < o.count; {
		one, cancel := context.WithDeadline(ctx, heard.Add(time.Duration(o.timeout*float64(time.Second))))
		delivery, err := consumer.Receive(one)
		cancel()
		if errors.Is(err, context.DeadlineExceeded) {
			reason = "timeout"
			break
		}
		if err != nil {
			if !o.reconnect || ctx.Err() != nil {
				return err
			}
			time.Sleep(100 * time.Millisecond) // until the library has made its link anew
			continue
		}
		heard = time.Now()
		show(delivery.Message())
		count++
		if o.acknowledge == "client" {
			kept = append(kept, delivery)
		} else if o.outcome != "none" && !o.settled {
			if err := settle(ctx, o, delivery); err != nil {
				return err
			}
		}
	}
	for _, delivery := range kept {
		if err := settle(ctx, o, delivery); err != nil {
			return err
		}
	}
	if err := consumer.Close(ctx); err != nil {
		return err
	}
	say("end", line{"reason": reason, "count": count})
	return nil
}

// own has a queue that goes with its connection, and receives from it.
func own(ctx context.Context, o options, connection *rmq.AmqpConnection) error {
	queue := &rmq.ClassicQueueSpecification{Name: nameOf(o.address), IsExclusive: true, IsAutoDelete: true}
	info, err := connection.Management().DeclareQueue(ctx, queue)
	if err != nil {
		return err
	}
	say("queue", described(info))
	return receive(ctx, o, connection)
}

// ---- requests and replies

// request has its answers on a queue that the gateway makes for it, or on one that the library declares.
func request(ctx context.Context, o options, connection *rmq.AmqpConnection) error {
	terms := &rmq.RequesterOptions{RequestQueueName: nameOf(o.address), SettleStrategy: rmq.DirectReplyTo}
	if o.kind == "queue" {
		terms.SettleStrategy = rmq.ExplicitSettle
	}
	requester, err := connection.NewRequester(ctx, terms)
	if err != nil {
		return err
	}
	say("attached", nil)
	for n := 0; n < o.count; n++ {
		asked := message(o, n)
		replies, err := requester.Publish(ctx, asked)
		if err != nil {
			return err
		}
		select {
		case reply, isThere := <-replies:
			if !isThere {
				return errors.New("no reply came")
			}
			correlated := reply.Properties.CorrelationID == asked.Properties.MessageID
			say("message", line{"body": string(reply.GetData()), "n": n, "correlated": correlated})
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	say("end", line{"reason": "count", "count": o.count})
	return requester.Close(ctx)
}

func reply(ctx context.Context, o options, connection *rmq.AmqpConnection) error {
	asked := make(chan struct{}, o.count)
	responder, err := connection.NewResponder(ctx, rmq.ResponderOptions{
		RequestQueue: nameOf(o.address),
		Handler: func(_ context.Context, request *amqp.Message) (*amqp.Message, error) {
			asked <- struct{}{}
			return rmq.NewMessage([]byte("re: " + string(request.GetData()))), nil
		},
	})
	if err != nil {
		return err
	}
	say("attached", nil)
	for n := 0; n < o.count; n++ {
		select {
		case <-asked:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	time.Sleep(time.Second) // the library does not say when the last reply is out
	say("end", line{"reason": "count", "count": o.count})
	return responder.Close(ctx)
}

func main() {
	o := parse(os.Args[1:])
	ctx, cancel := context.WithTimeout(context.Background(), patience+time.Duration(o.timeout)*time.Second)
	defer cancel()
	if err := run(ctx, o); err != nil {
		say("error", failure(err))
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	recovery := &rmq.RecoveryConfiguration{
		ActiveRecovery: o.reconnect, BackOffReconnectInterval: 1100 * time.Millisecond, MaxReconnectAttempts: 9,
	}
	terms := &rmq.AmqpConnOptions{SASLType: amqp.SASLTypeAnonymous(), RecoveryConfiguration: recovery}
	if o.token != "" {
		terms.OAuth2Options = &rmq.OAuth2Options{Token: o.token}
	}
	environment := rmq.NewEnvironment(o.url, terms)
	connection, err := environment.NewConnection(ctx)
	if err != nil {
		return err
	}
	verbs := map[string]func(context.Context, options, *rmq.AmqpConnection) error{
		"send": send, "receive": receive, "stream": receive, "own": own, "request": request, "reply": reply,
		"renew": renew,
	}
	verb, isThere := verbs[o.verb]
	if !isThere {
		verb = manage
	}
	if err := verb(ctx, o, connection); err != nil {
		return err
	}
	return environment.CloseConnections(ctx)
}
