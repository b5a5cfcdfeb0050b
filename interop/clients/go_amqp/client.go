// The client program on go-amqp: blocking calls with contexts, filters by name, and a loop that dials anew.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/Azure/go-amqp"
)

type line map[string]any

type options struct {
	verb, url, address, body, selector, subscription, container, outcome, acknowledge, start, until string
	count, size, delay, groups                                                                                     int
	timeout                                                                                         float64
	durable, shared, reconnect                                                                      bool
}

func parse(arguments []string) options {
	o := options{verb: arguments[0]}
	f := flag.NewFlagSet(o.verb, flag.ExitOnError)
	f.StringVar(&o.url, "url", "", "")
	f.StringVar(&o.address, "address", "", "")
	f.StringVar(&o.body, "body", "message", "")
	f.StringVar(&o.selector, "selector", "", "")
	f.StringVar(&o.subscription, "subscription", "", "")
	f.StringVar(&o.container, "container", "", "")
	f.StringVar(&o.outcome, "outcome", "accept", "")
	f.StringVar(&o.acknowledge, "acknowledge", "auto", "")
	f.StringVar(&o.start, "start", "", "")
	f.StringVar(&o.until, "until", "", "")
	f.IntVar(&o.count, "count", 1, "")
	f.IntVar(&o.size, "size", 0, "")
	f.IntVar(&o.delay, "delay", 0, "")
	f.IntVar(&o.groups, "groups", 0, "")
	f.Float64Var(&o.timeout, "timeout", 5, "")
	f.BoolVar(&o.durable, "durable", false, "")
	f.BoolVar(&o.shared, "shared", false, "")
	f.BoolVar(&o.reconnect, "reconnect", false, "")
	f.Parse(arguments[1:])
	return o
}

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
	var session *amqp.SessionError
	var connection *amqp.ConnError
	switch {
	case errors.As(err, &link):
		remote = link.RemoteErr
	case errors.As(err, &session):
		remote = session.RemoteErr
	case errors.As(err, &connection):
		remote = connection.RemoteErr
	default:
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

// ---- messages, sources

func message(o options, n int) *amqp.Message {
	body := fmt.Sprintf("%s-%d", o.body, n)
	id := body
	if o.size > 0 {
		body = strings.Repeat("x", o.size)
	}
	colour := "grün"
	if n%2 == 1 {
		colour = "red"
	}
	made := &amqp.Message{
		Header:                &amqp.MessageHeader{Durable: true},
		Properties:            &amqp.MessageProperties{MessageID: id},
		ApplicationProperties: map[string]any{"n": int32(n), "colour": colour},
		Value:                 body,
	}
	if o.delay > 0 {
		made.Annotations = amqp.Annotations{"x-opt-delivery-delay": int64(o.delay)}
	}
	if o.groups > 0 {
		group := fmt.Sprintf("g%d", n%o.groups)
		made.Properties.GroupID = &group
	}
	return made
}

func show(m *amqp.Message) {
	body, _ := m.Value.(string)
	values := line{
		"body": body, "size": len(body), "n": m.ApplicationProperties["n"],
		"colour": m.ApplicationProperties["colour"], "delivery_count": 0, "redelivered": false,
		"replay_id": m.Annotations["x-opt-replay-id"], "replay_end": m.Annotations["x-opt-replay-end"] == true,
	}
	if len(body) >= 200 {
		values["body"] = nil
	}
	if m.Header != nil {
		values["delivery_count"], values["redelivered"] = m.Header.DeliveryCount, m.Header.DeliveryCount > 0
	}
	say("message", values)
}

func source(o options) *amqp.ReceiverOptions {
	terms := &amqp.ReceiverOptions{Name: o.subscription, Credit: -1} // credit is given by hand
	if o.durable {
		terms.SourceDurability, terms.SourceExpiryPolicy = amqp.DurabilityUnsettledState, amqp.ExpiryPolicyNever
	}
	if o.shared {
		terms.SourceCapabilities = []string{"shared"}
	}
	if o.selector != "" {
		terms.Filters = append(terms.Filters, amqp.NewSelectorFilter(o.selector))
	}
	if o.start != "" {
		var start any = o.start
		if o.until != "" {
			start = map[string]any{"from": o.start, "until": o.until}
		}
		terms.Filters = append(terms.Filters, amqp.NewLinkFilter("rewind:replay-start", 0, start))
	}
	return terms
}

func settle(ctx context.Context, o options, r *amqp.Receiver, m *amqp.Message) error {
	switch o.outcome {
	case "accept":
		return r.AcceptMessage(ctx, m)
	case "reject":
		return r.RejectMessage(ctx, m, nil)
	case "release":
		return r.ReleaseMessage(ctx, m)
	default:
		return r.ModifyMessage(ctx, m, &amqp.ModifyMessageOptions{DeliveryFailed: true})
	}
}

// ---- programs: each goes on where it was when it is called with a new session

type program struct {
	options
	count int
}

func (p *program) send(ctx context.Context, s *amqp.Session) error {
	sender, err := s.NewSender(ctx, p.address, nil)
	if err != nil {
		return err
	}
	say("attached", nil)
	for p.count < p.options.count {
		outcome := "accepted"
		if err := sender.Send(ctx, message(p.options, p.count), nil); err != nil {
			// A rejection comes as it is; errors of a link or a connection wrap what the gateway said.
			if _, isRejected := err.(*amqp.Error); !isRejected {
				return err
			}
			outcome = "rejected"
		}
		say("sent", line{"n": p.count, "outcome": outcome})
		p.count++
	}
	say("end", line{"reason": "count", "count": p.count})
	return nil
}

func (p *program) receive(ctx context.Context, s *amqp.Session) error {
	receiver, err := s.NewReceiver(ctx, p.address, source(p.options))
	if err != nil {
		return err
	}
	say("attached", nil)
	end := func(reason string, kept []*amqp.Message) error {
		for _, each := range kept {
			if err := settle(ctx, p.options, receiver, each); err != nil {
				return err
			}
		}
		say("end", line{"reason": reason, "count": p.count})
		return receiver.Close(ctx)
	}
	if p.count >= p.options.count {
		return end("count", nil)
	}
	if err := receiver.IssueCredit(uint32(p.options.count - p.count)); err != nil {
		return err
	}
	var kept []*amqp.Message
	for p.count < p.options.count {
		patience, cancel := context.WithTimeout(ctx, time.Duration(p.timeout*float64(time.Second)))
		m, err := receiver.Receive(patience, nil)
		cancel()
		if errors.Is(err, context.DeadlineExceeded) {
			return end("timeout", kept)
		}
		var link *amqp.LinkError
		if errors.As(err, &link) && link.RemoteErr == nil {
			say("end", line{"reason": "detached", "count": p.count})
			return nil
		}
		if err != nil {
			return err
		}
		show(m)
		p.count++
		switch {
		case p.outcome == "none":
		case p.acknowledge == "auto":
			if err := settle(ctx, p.options, receiver, m); err != nil {
				return err
			}
		default:
			kept = append(kept, m)
		}
	}
	return end("count", kept)
}

func (p *program) request(ctx context.Context, s *amqp.Session) error {
	receiver, err := s.NewReceiver(ctx, "", &amqp.ReceiverOptions{DynamicAddress: true, Credit: 1})
	if err != nil {
		return err
	}
	replyTo := receiver.Address()
	say("attached", line{"reply_to": replyTo})
	sender, err := s.NewSender(ctx, p.address, nil)
	if err != nil {
		return err
	}
	for ; p.count < p.options.count; p.count++ {
		asked := message(p.options, p.count)
		correlation := fmt.Sprintf("c-%d", p.count)
		asked.Properties.ReplyTo, asked.Properties.CorrelationID = &replyTo, correlation
		if err := sender.Send(ctx, asked, nil); err != nil {
			return err
		}
		reply, err := receiver.Receive(ctx, nil)
		if err != nil {
			return err
		}
		say("message", line{
			"body": reply.Value, "n": p.count, "correlated": reply.Properties.CorrelationID == correlation,
		})
		if err := receiver.AcceptMessage(ctx, reply); err != nil {
			return err
		}
	}
	say("end", line{"reason": "count", "count": p.count})
	return nil
}

func (p *program) reply(ctx context.Context, s *amqp.Session) error {
	relay, err := s.NewSender(ctx, "", nil)
	if err != nil {
		return err
	}
	receiver, err := s.NewReceiver(ctx, p.address, nil)
	if err != nil {
		return err
	}
	say("attached", nil)
	for ; p.count < p.options.count; p.count++ {
		asked, err := receiver.Receive(ctx, nil)
		if err != nil {
			return err
		}
		show(asked)
		answer := &amqp.Message{
			Properties: &amqp.MessageProperties{
				To: asked.Properties.ReplyTo, CorrelationID: asked.Properties.CorrelationID,
			},
			Value: fmt.Sprintf("re: %v", asked.Value),
		}
		if err := relay.Send(ctx, answer, nil); err != nil {
			return err
		}
		if err := receiver.AcceptMessage(ctx, asked); err != nil {
			return err
		}
	}
	say("end", line{"reason": "count", "count": p.count})
	return nil
}

// unsubscribe attaches without an address, and closes.
func (p *program) unsubscribe(ctx context.Context, s *amqp.Session) error {
	terms := &amqp.ReceiverOptions{Name: p.subscription, Credit: -1}
	receiver, err := s.NewReceiver(ctx, "", terms)
	if err != nil {
		return err
	}
	say("attached", nil)
	if err := receiver.Close(ctx); err != nil {
		return err
	}
	say("end", line{"reason": "count", "count": 0})
	return nil
}

func (p *program) run(ctx context.Context) error {
	connection, err := amqp.Dial(ctx, p.url, &amqp.ConnOptions{ContainerID: p.container})
	if err != nil {
		return err
	}
	defer connection.Close()
	session, err := connection.NewSession(ctx, nil)
	if err != nil {
		return err
	}
	programs := map[string]func(context.Context, *amqp.Session) error{
		"send": p.send, "receive": p.receive, "replay": p.receive, "request": p.request, "reply": p.reply,
		"unsubscribe": p.unsubscribe,
	}
	run, known := programs[p.verb]
	if !known {
		return fmt.Errorf("no verb %s", p.verb)
	}
	return run(ctx, session)
}

func main() {
	p := &program{options: parse(os.Args[1:])}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	err := p.run(ctx)
	for err != nil && p.reconnect && ctx.Err() == nil {
		time.Sleep(200 * time.Millisecond)
		err = p.run(ctx)
	}
	if err != nil {
		say("error", failure(err))
		os.Exit(1)
	}
}
