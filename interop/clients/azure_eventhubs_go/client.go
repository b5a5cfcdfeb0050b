// The client program on Azure's Event Hubs client for Go; its verbs and options are those of azure_eventhub.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/log"
	azeventhubs "github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2"
)

type line map[string]any

type options struct {
	verb, url, address, body, start, group, partition, store, key string
	count, size                                                   int
	level                                                         int64
	timeout                                                       float64
	reconnect, inclusive, together                                bool
}

func parse(arguments []string) options {
	o := options{verb: arguments[0]}
	f := flag.NewFlagSet(o.verb, flag.ExitOnError)
	f.StringVar(&o.url, "url", "", "")
	f.StringVar(&o.address, "address", "", "")
	f.StringVar(&o.body, "body", "message", "")
	f.StringVar(&o.start, "start", "latest", "")
	f.StringVar(&o.group, "group", azeventhubs.DefaultConsumerGroup, "")
	f.StringVar(&o.partition, "partition", "0", "")
	f.StringVar(&o.store, "store", "", "")
	f.StringVar(&o.key, "key", "", "")
	f.IntVar(&o.count, "count", 1, "")
	f.IntVar(&o.size, "size", 0, "")
	f.Int64Var(&o.level, "level", -1, "")
	f.Float64Var(&o.timeout, "timeout", 5, "")
	f.BoolVar(&o.reconnect, "reconnect", false, "")
	f.BoolVar(&o.inclusive, "inclusive", false, "")
	f.BoolVar(&o.together, "together", false, "")
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

// failure shows an error as a user of the library sees it: the condition is in its text alone.
func failure(err error) line {
	return line{"kind": fmt.Sprintf("%T", err), "condition": nil, "info": line{}, "text": err.Error()}
}

// connection is as users of the emulator have it.
func (o options) connection() string {
	return fmt.Sprintf("Endpoint=sb://%s;SharedAccessKeyName=RootManageSharedAccessKey;"+
		"SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;EntityPath=%s",
		strings.TrimPrefix(o.url, "amqp://"), strings.TrimPrefix(o.address, "queue://"))
}

func (o options) retries() azeventhubs.RetryOptions {
	if o.reconnect {
		return azeventhubs.RetryOptions{MaxRetries: 20, RetryDelay: 200 * time.Millisecond, MaxRetryDelay: 2 * time.Second}
	}
	return azeventhubs.RetryOptions{MaxRetries: -1}
}

func (o options) consumer() (*azeventhubs.ConsumerClient, error) {
	return azeventhubs.NewConsumerClientFromConnectionString(
		o.connection(), "", o.group, &azeventhubs.ConsumerClientOptions{RetryOptions: o.retries()})
}

// ---- send

func (o options) event(n int) *azeventhubs.EventData {
	id := fmt.Sprintf("%s-%d", o.body, n)
	body := id
	if o.size > 0 {
		body = strings.Repeat("x", o.size)
	}
	colour := "grün"
	if n%2 == 1 {
		colour = "red"
	}
	return &azeventhubs.EventData{
		MessageID: &id, Body: []byte(body), Properties: map[string]any{"n": int32(n), "colour": colour},
	}
}

// send sends batches, each accepted before the next is sent.
func send(ctx context.Context, o options) error {
	client, err := azeventhubs.NewProducerClientFromConnectionString(
		o.connection(), "", &azeventhubs.ProducerClientOptions{RetryOptions: o.retries()})
	if err != nil {
		return err
	}
	defer client.Close(ctx)
	say("attached", nil)
	terms := &azeventhubs.EventDataBatchOptions{}
	if o.key != "" {
		terms.PartitionKey = &o.key
	}
	step := 1
	if o.together {
		step = o.count
	}
	for at := 0; at < o.count; at += step {
		batch, err := client.NewEventDataBatch(ctx, terms)
		if err != nil {
			return err
		}
		for n := at; n < at+step; n++ {
			if err := batch.AddEventData(o.event(n), nil); err != nil {
				return err
			}
		}
		if err := client.SendEventDataBatch(ctx, batch, nil); err != nil {
			return err
		}
		for n := at; n < at+step; n++ {
			say("sent", line{"n": n, "outcome": "accepted"})
		}
	}
	say("end", line{"reason": "count", "count": o.count})
	return nil
}

// ---- receive

func (o options) position() (azeventhubs.StartPosition, error) {
	kind, value, _ := strings.Cut(o.start, ":")
	at, yes := azeventhubs.StartPosition{Inclusive: o.inclusive}, true
	number := int64(0)
	switch kind {
	case "beginning":
		at.Earliest = &yes
		return at, nil
	case "latest":
		at.Latest = &yes
		return at, nil
	case "offset":
		at.Offset = &value
		return at, nil
	}
	number, err := strconv.ParseInt(value, 10, 64)
	if kind == "sequence" {
		at.SequenceNumber = &number
	} else {
		date := time.UnixMilli(number)
		at.EnqueuedTime = &date
	}
	return at, err
}

func show(event *azeventhubs.ReceivedEventData) {
	values := line{
		"body": string(event.Body), "size": len(event.Body), "n": event.Properties["n"],
		"colour": event.Properties["colour"], "redelivered": false, "delivery_count": 0,
		"replay_id":  event.SystemProperties["x-opt-replay-id"],
		"replay_end": event.SystemProperties["x-opt-replay-end"] == true,
		"offset":     event.Offset, "sequence": event.SequenceNumber,
		"enqueued": event.EnqueuedTime.UnixMilli(), "key": event.PartitionKey,
	}
	if len(event.Body) >= 200 {
		values["body"] = nil
	}
	say("message", values)
}

// reader is what a partition's client and a processor's have in common.
type reader interface {
	ReceiveEvents(context.Context, int, *azeventhubs.ReceiveEventsOptions) ([]*azeventhubs.ReceivedEventData, error)
}

// read receives until there are enough, or none comes in time; each event is handed to keep.
func (o options) read(ctx context.Context, from reader, keep func(*azeventhubs.ReceivedEventData) error) error {
	patience := time.Duration(o.timeout * float64(time.Second))
	for count := 0; ; {
		waiting, cancel := context.WithTimeout(ctx, patience)
		events, err := from.ReceiveEvents(waiting, 1, nil)
		cancel()
		if errors.Is(err, context.DeadlineExceeded) {
			say("end", line{"reason": "timeout", "count": count})
			return nil
		}
		if err != nil {
			return err
		}
		for _, event := range events {
			show(event)
			if err := keep(event); err != nil {
				return err
			}
			if count++; count >= o.count {
				say("end", line{"reason": "count", "count": count})
				return nil
			}
		}
	}
}

// events receives from a partition, or from the checkpoint in a file.
func events(ctx context.Context, o options) error {
	client, err := o.consumer()
	if err != nil {
		return err
	}
	defer client.Close(ctx)
	at, err := o.position()
	if err != nil {
		return err
	}
	// The library attaches with the first call for events, and nothing but its log says so.
	log.SetEvents(azeventhubs.EventConn)
	log.SetListener(func(_ log.Event, text string) {
		if strings.Contains(text, "created link for partition") {
			say("attached", nil)
		}
	})
	if o.store != "" {
		return o.process(ctx, client, at)
	}
	terms := &azeventhubs.PartitionClientOptions{StartPosition: at}
	if o.level >= 0 {
		terms.OwnerLevel = &o.level
	}
	partition, err := client.NewPartitionClient(o.partition, terms)
	if err != nil {
		return err
	}
	defer partition.Close(ctx)
	return o.read(ctx, partition, func(*azeventhubs.ReceivedEventData) error { return nil })
}

func (o options) process(ctx context.Context, client *azeventhubs.ConsumerClient, at azeventhubs.StartPosition) error {
	processor, err := azeventhubs.NewProcessor(client, &store{path: o.store}, &azeventhubs.ProcessorOptions{
		StartPositions: azeventhubs.StartPositions{Default: at}, UpdateInterval: time.Second,
	})
	if err != nil {
		return err
	}
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		err := processor.Run(running)
		stop()
		ended <- err
	}()
	partition := processor.NextPartitionClient(running)
	if partition == nil {
		return <-ended
	}
	err = o.read(ctx, partition, func(event *azeventhubs.ReceivedEventData) error {
		return partition.UpdateCheckpoint(ctx, event, nil)
	})
	partition.Close(ctx)
	stop()
	<-ended
	return err
}

// store keeps checkpoints in a file; one program at a time reads, and owns what it claims.
type store struct {
	path  string
	owned []azeventhubs.Ownership
}

func (s *store) ClaimOwnership(
	_ context.Context, wanted []azeventhubs.Ownership, _ *azeventhubs.ClaimOwnershipOptions,
) ([]azeventhubs.Ownership, error) {
	s.owned = wanted
	for n := range s.owned {
		s.owned[n].LastModifiedTime = time.Now()
	}
	return s.owned, nil
}

func (s *store) ListOwnership(
	context.Context, string, string, string, *azeventhubs.ListOwnershipOptions,
) ([]azeventhubs.Ownership, error) {
	return s.owned, nil
}

func (s *store) SetCheckpoint(
	_ context.Context, reached azeventhubs.Checkpoint, _ *azeventhubs.SetCheckpointOptions,
) error {
	text, err := json.Marshal(reached)
	if err != nil {
		return err
	}
	return os.WriteFile(s.path, text, 0o600)
}

func (s *store) ListCheckpoints(
	context.Context, string, string, string, *azeventhubs.ListCheckpointsOptions,
) ([]azeventhubs.Checkpoint, error) {
	text, err := os.ReadFile(s.path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	var reached azeventhubs.Checkpoint
	if err == nil {
		err = json.Unmarshal(text, &reached)
	}
	return []azeventhubs.Checkpoint{reached}, err
}

// ---- properties

func properties(ctx context.Context, o options) error {
	client, err := o.consumer()
	if err != nil {
		return err
	}
	defer client.Close(ctx)
	hub, err := client.GetEventHubProperties(ctx, nil)
	if err != nil {
		return err
	}
	say("hub", line{"name": hub.Name, "partitions": hub.PartitionIDs, "created": hub.CreatedOn.UnixMilli()})
	found, err := client.GetPartitionProperties(ctx, o.partition, nil)
	if err != nil {
		return err
	}
	say("partition", line{
		"begin": found.BeginningSequenceNumber, "last": found.LastEnqueuedSequenceNumber,
		"offset": found.LastEnqueuedOffset, "enqueued": found.LastEnqueuedOn.UnixMilli(), "empty": found.IsEmpty,
	})
	say("end", line{"reason": "count", "count": 0})
	return nil
}

func main() {
	o := parse(os.Args[1:])
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	run, known := map[string]func(context.Context, options) error{"send": send, "properties": properties}[o.verb]
	if !known {
		run = events
	}
	if err := run(ctx, o); err != nil {
		say("error", failure(err))
		os.Exit(1)
	}
}
