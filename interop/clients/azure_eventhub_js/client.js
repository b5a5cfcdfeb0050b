// The client program on Azure's Event Hubs client for JavaScript; its verbs and options are those of azure_eventhub.
'use strict';

const fs = require('node:fs');
const { parseArgs } = require('node:util');
const { EventHubConsumerClient, EventHubProducerClient } = require('@azure/event-hubs');

const text = { type: 'string' };
const flag = { type: 'boolean', default: false };
const { values: options, positionals: [verb] } = parseArgs({
    allowPositionals: true,
    options: {
        url: text, address: { type: 'string', default: '' }, count: { type: 'string', default: '1' },
        timeout: { type: 'string', default: '5' }, body: { type: 'string', default: 'message' },
        size: { type: 'string', default: '0' }, reconnect: flag, start: { type: 'string', default: 'latest' },
        inclusive: flag, level: text, group: { type: 'string', default: '$Default' },
        partition: { type: 'string', default: '0' }, store: text, together: flag, key: text,
    },
});
const wanted = Number(options.count);
// Enough for a gateway that takes its time to start; past the last retry the library sleeps for half a minute.
const retryOptions = options.reconnect ? { maxRetries: 100, retryDelayInMs: 200 } : { maxRetries: 0 };

function say(event, values) {
    console.log(JSON.stringify({ event, ...values }));
}

function fail(error) {
    process.exitCode = 1;
    say('error', { kind: error.name, condition: error.code || error.condition || null, info: {}, text: error.message });
}

// As users of the emulator have it.
function connection_string() {
    return `Endpoint=sb://${new URL(options.url).host};SharedAccessKeyName=RootManageSharedAccessKey;`
        + `SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;EntityPath=${options.address.replace('queue://', '')}`;
}

function event(n) {
    const size = Number(options.size);
    return {
        messageId: `${options.body}-${n}`,
        body: size ? 'x'.repeat(size) : `${options.body}-${n}`,
        properties: { n, colour: n % 2 ? 'red' : 'grün' },
    };
}

async function send() {
    const client = new EventHubProducerClient(connection_string(), { retryOptions });
    try {
        say('attached');
        const step = options.together ? wanted : 1;
        for (let at = 0; at < wanted; at += step) {
            const batch = await client.createBatch(options.key ? { partitionKey: options.key } : {});
            for (let n = at; n < at + step; n++) {
                if (!batch.tryAdd(event(n))) throw new Error(`the batch is full at event ${n}`);
            }
            await client.sendBatch(batch);
            for (let n = at; n < at + step; n++) say('sent', { n, outcome: 'accepted' });
        }
        say('end', { reason: 'count', count: wanted });
    } finally {
        await client.close();
    }
}

function position() {
    const [kind, value] = options.start.split(':');
    const isInclusive = options.inclusive;
    switch (kind) {
    case 'offset': return { offset: value, isInclusive };
    case 'sequence': return { sequenceNumber: Number(value), isInclusive };
    case 'date': return { enqueuedOn: Number(value) };
    case 'beginning': return { offset: '-1', isInclusive };
    default: return { offset: '@latest', isInclusive };
    }
}

// Checkpoints, in a file where one is named; one program at a time reads, and owns what it claims.
const is_kept = options.store || options.reconnect;
const store = {
    owned: [],
    noted: [],
    async listOwnership() { return this.owned; },
    async claimOwnership(wanted_) {
        this.owned = wanted_.map((one) => ({ ...one, etag: 'e', lastModifiedTimeInMs: Date.now() }));
        return this.owned;
    },
    async updateCheckpoint(checkpoint) {
        this.noted = [checkpoint];
        if (options.store) fs.writeFileSync(options.store, JSON.stringify(checkpoint));
    },
    async listCheckpoints() {
        if (!options.store) return this.noted;
        return fs.existsSync(options.store) ? [JSON.parse(fs.readFileSync(options.store, 'utf8'))] : [];
    },
};

function show(received) {
    const annotations = received.systemProperties || {};
    const properties = received.properties || {};
    say('message', {
        body: received.body.length < 200 ? received.body : null,
        size: received.body.length,
        n: properties.n,
        colour: properties.colour,
        redelivered: false,
        delivery_count: 0,
        replay_id: annotations['x-opt-replay-id'] || null,
        replay_end: annotations['x-opt-replay-end'] || false,
        offset: received.offset,
        sequence: received.sequenceNumber,
        enqueued: received.enqueuedTimeUtc.getTime(),
        key: received.partitionKey || null,
    });
}

async function events() {
    const settings = { retryOptions, loadBalancingOptions: { updateIntervalInMs: 1000 } };
    const client = is_kept
        ? new EventHubConsumerClient(options.group, connection_string(), store, settings)
        : new EventHubConsumerClient(options.group, connection_string(), settings);
    let count = 0;
    let heard = Date.now();
    let attached = false;
    let finish;
    const ended = new Promise((resolve) => { finish = resolve; });
    const handlers = {
        async processEvents(received, context) {
            if (!received.length && !attached) {
                attached = true; // nothing came for a while: the link is there
                say('attached');
            }
            for (const one of received) {
                if (count >= wanted) return;
                heard = Date.now();
                show(one);
                count++;
                if (is_kept) await context.updateCheckpoint(one);
                if (count >= wanted) finish('count');
            }
        },
        async processError(error) {
            // While the gateway is away, connecting may be refused; the library begins again behind the checkpoint.
            if (options.reconnect) say('again', { text: error.code || error.name });
            else finish(error);
        },
    };
    const wishes = {
        startPosition: position(), maxWaitTimeInSeconds: 0.3, maxBatchSize: 10,
        ownerLevel: options.level === undefined ? undefined : Number(options.level),
    };
    const subscription = is_kept
        ? client.subscribe(handlers, wishes)
        : client.subscribe(options.partition, handlers, wishes);
    const timer = setInterval(() => {
        if ((attached || count) && Date.now() - heard > 1000 * Number(options.timeout)) finish('timeout');
    }, 50);
    const reason = await ended;
    clearInterval(timer);
    if (typeof reason === 'string') say('end', { reason, count });
    else fail(reason);
    await subscription.close();
    await client.close();
}

async function properties() {
    const client = new EventHubConsumerClient(options.group, connection_string(), { retryOptions });
    try {
        const hub = await client.getEventHubProperties();
        say('hub', { name: hub.name, partitions: hub.partitionIds, created: hub.createdOn.getTime() });
        const found = await client.getPartitionProperties(options.partition);
        say('partition', {
            begin: found.beginningSequenceNumber,
            last: found.lastEnqueuedSequenceNumber,
            offset: String(found.lastEnqueuedOffset),
            enqueued: found.lastEnqueuedOnUtc.getTime(),
            empty: found.isEmpty,
        });
        say('end', { reason: 'count', count: 0 });
    } finally {
        await client.close();
    }
}

({ send, properties }[verb] || events)().catch(fail);
