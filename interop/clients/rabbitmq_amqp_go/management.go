package main

import (
	"context"
	"flag"
	"fmt"
	"strings"

	rmq "github.com/rabbitmq/rabbitmq-amqp-go-client/pkg/rabbitmqamqp"
)

type options struct {
	verb, url, address, body, outcome, acknowledge, start, kind, argument, queue string
	value, values, subject, property, sql, token, next, endpoint                 string
	count, size, delay, groups                                                                  int
	timeout                                                                      float64
	reconnect, unfiltered, settled                                               bool
}

func parse(arguments []string) options {
	o := options{verb: arguments[0], body: "message", outcome: "accept", acknowledge: "auto"}
	f := flag.NewFlagSet(o.verb, flag.ExitOnError)
	for name, field := range map[string]*string{
		"url": &o.url, "address": &o.address, "body": &o.body, "outcome": &o.outcome,
		"acknowledge": &o.acknowledge, "start": &o.start, "kind": &o.kind, "argument": &o.argument,
		"queue": &o.queue, "value": &o.value, "values": &o.values, "subject": &o.subject,
		"property": &o.property, "sql": &o.sql, "token": &o.token, "next": &o.next, "endpoint": &o.endpoint,
	} {
		f.StringVar(field, name, *field, "")
	}
	f.IntVar(&o.count, "count", 1, "")
	f.IntVar(&o.size, "size", 0, "")
	f.IntVar(&o.delay, "delay", 0, "")
	f.IntVar(&o.groups, "groups", 0, "")
	f.Float64Var(&o.timeout, "timeout", 5, "")
	f.BoolVar(&o.reconnect, "reconnect", false, "")
	f.BoolVar(&o.unfiltered, "unfiltered", false, "")
	f.BoolVar(&o.settled, "settled", false, "")
	f.Parse(arguments[1:])
	return o
}

func described(info *rmq.AmqpQueueInfo) line {
	arguments := line{}
	for name, value := range info.Arguments() {
		arguments[name] = fmt.Sprint(value)
	}
	return line{
		"name": info.Name(), "kind": string(info.Type()), "messages": info.MessageCount(),
		"consumers": info.ConsumerCount(), "exclusive": info.IsExclusive(), "auto_delete": info.IsAutoDelete(),
		"arguments": arguments,
	}
}

// manage makes one request to /management.
func manage(ctx context.Context, o options, connection *rmq.AmqpConnection) error {
	management := connection.Management()
	name := nameOf(o.address)
	var err error
	switch o.verb {
	case "declare":
		err = declare(ctx, o, management)
	case "bind", "unbind":
		exchange, key, _ := strings.Cut(name, "/")
		binding := &rmq.ExchangeToQueueBindingSpecification{
			SourceExchange: exchange, DestinationQueue: o.queue, BindingKey: key,
		}
		var path string
		// Binding again changes nothing, and is how the library says what to unbind.
		if path, err = management.Bind(ctx, binding); err == nil && o.verb == "unbind" {
			err = management.Unbind(ctx, path)
		}
	case "describe":
		var info *rmq.AmqpQueueInfo
		if info, err = management.QueueInfo(ctx, name); err == nil {
			say("queue", described(info))
		}
	case "purge":
		var count int
		if count, err = management.PurgeQueue(ctx, name); err == nil {
			say("queue", line{"messages": count})
		}
	case "delete":
		if o.kind == "exchange" {
			err = management.DeleteExchange(ctx, name)
		} else {
			err = management.DeleteQueue(ctx, name)
		}
	default:
		err = fmt.Errorf("no verb %s", o.verb)
	}
	if err == nil {
		say("end", line{"reason": "count", "count": 0})
	}
	return err
}

func declare(ctx context.Context, o options, management *rmq.AmqpManagement) error {
	name := nameOf(o.address)
	argument, value, _ := strings.Cut(o.argument, "=")
	switch o.kind {
	case "stream":
		_, err := management.DeclareQueue(ctx, &rmq.StreamQueueSpecification{Name: name, MaxLengthBytes: 1_000_000_000})
		return err
	case "exchange":
		_, err := management.DeclareExchange(ctx, &rmq.TopicExchangeSpecification{Name: name})
		return err
	}
	queue := &rmq.QuorumQueueSpecification{Name: name}
	switch argument {
	case "max_len":
		fmt.Sscanf(value, "%d", &queue.MaxLength)
	case "overflow_behaviour":
		queue.OverflowStrategy = &rmq.DropHeadOverflowStrategy{}
	case "single_active_consumer":
		queue.SingleActiveConsumer = true
	case "delayed_retry":
		least := 0
		fmt.Sscanf(value, "%d", &least)
		queue.Arguments = map[string]any{"x-delayed-retry-type": "failed", "x-delayed-retry-min": least}
	}
	_, err := management.DeclareQueue(ctx, queue)
	return err
}
