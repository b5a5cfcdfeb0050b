// The client program on rhea: events, described types for its own filters, and its own reconnecting.
'use strict';

const rhea = require('rhea');
const { parseArgs } = require('node:util');

const VERBS = ['send', 'receive', 'browse', 'replay', 'request', 'reply', 'unsubscribe'];
const text = { type: 'string' };
const flag = { type: 'boolean', default: false };
const { values: options, positionals: [verb] } = parseArgs({
    allowPositionals: true,
    options: {
        url: text, address: { type: 'string', default: '' }, count: { type: 'string', default: '1' },
        timeout: { type: 'string', default: '5' }, body: { type: 'string', default: 'message' },
        size: { type: 'string', default: '0' }, delay: text, groups: text, selector: text, subscription: text, durable: flag, shared: flag,
        container: text, outcome: { type: 'string', default: 'accept' },
        acknowledge: { type: 'string', default: 'auto' }, reconnect: flag, start: text, until: text,
    },
});
const wanted = Number(options.count);
const container = rhea.create_container(options.container ? { id: options.container } : {});
const kept = []; // deliveries to settle at the end
let count = 0;
let timer = null;
let ended = false;
let connection = null;
let receiver = null;

function say(event, values) {
    console.log(JSON.stringify({ event, ...values }));
}

function plain(fields) {
    const shown = {};
    for (const [key, value] of Object.entries(fields || {})) {
        if (['string', 'number', 'boolean'].includes(typeof value)) shown[key] = value;
    }
    return shown;
}

function end(reason) {
    if (ended) return;
    ended = true;
    clearTimeout(timer);
    if (options.outcome !== 'none') {
        kept.forEach(settle);
        if (receiver) (options.durable ? receiver.detach() : receiver.close());
    }
    say('end', { reason, count });
    // The gateway's close, with amqp:connection:forced, may have been read in this same turn of the loop, behind the
    // last outcomes: rhea then answers it, and connects again for a program that has closed and has nothing to do.
    connection.set_reconnect(false);
    connection.close();
}

function fail(what, error) {
    if (ended) return;
    ended = true;
    clearTimeout(timer);
    const { condition = null, description = null, info = {} } = error || {};
    say('error', { kind: what, condition, info: plain(info), text: description || String(error) });
    process.exitCode = 1;
    connection.close();
}

function tick() {
    clearTimeout(timer);
    timer = setTimeout(() => end('timeout'), 1000 * Number(options.timeout));
}

function settle(delivery) {
    switch (options.outcome) {
    case 'accept': return delivery.accept();
    case 'reject': return delivery.reject();
    case 'release': return delivery.release();
    default: return delivery.modified({ delivery_failed: true });
    }
}

function message(n) {
    const size = Number(options.size);
    return {
        message_id: `${options.body}-${n}`,
        body: size ? 'x'.repeat(size) : `${options.body}-${n}`,
        durable: true,
        application_properties: { n, colour: n % 2 ? 'red' : 'grün' },
        group_id: options.groups ? `g${n % Number(options.groups)}` : undefined,
        message_annotations: options.delay ? { 'x-opt-delivery-delay': Number(options.delay) } : undefined,
    };
}

function show(received) {
    const annotations = received.message_annotations || {};
    const properties = received.application_properties || {};
    const failed = received.delivery_count || 0;
    say('message', {
        body: received.body.length < 200 ? received.body : null,
        size: received.body.length,
        n: properties.n,
        colour: properties.colour,
        redelivered: failed > 0,
        delivery_count: failed,
        replay_id: annotations['x-opt-replay-id'] || null,
        replay_end: annotations['x-opt-replay-end'] || false,
    });
}

// A replay start is a described type in the source's filter: a text, or a map with an end.
function start_filter() {
    const { wrap_described, wrap_symbol, wrap_symbolic_map } = rhea.types;
    const value = options.until
        ? wrap_symbolic_map({ from: wrap_symbol(options.start), until: wrap_symbol(options.until) })
        : options.start;
    return { start: wrap_described(value, 'rewind:replay-start') };
}

function source() {
    const terms = { address: options.address };
    if (options.durable) Object.assign(terms, { durable: 2, expiry_policy: 'never' });
    if (options.shared) terms.capabilities = ['shared'];
    if (verb === 'browse') terms.distribution_mode = 'copy';
    if (options.selector) terms.filter = rhea.filter.selector(options.selector);
    if (options.start) terms.filter = start_filter();
    return terms;
}

const programs = {
    send() {
        let next = 0;
        const numbers = new Map(); // delivery id to number: what has no outcome yet
        const again = [];
        const sender = connection.open_sender({ target: { address: options.address } });
        sender.on('sender_open', () => sender.target && say('attached'));
        sender.on('sendable', () => {
            while (sender.sendable() && (again.length || next < wanted)) {
                const n = again.length ? again.shift() : next++;
                numbers.set(sender.send(message(n)), n);
            }
        });
        const told = (outcome) => (context) => {
            const n = numbers.get(context.delivery);
            if (n === undefined) return;
            numbers.delete(context.delivery);
            say('sent', { n, outcome });
            if (++count === wanted) end('count');
        };
        for (const outcome of ['accepted', 'rejected', 'released', 'modified']) sender.on(outcome, told(outcome));
        connection.on('disconnected', () => {
            again.push(...numbers.values()); // nobody will tell us any more
            numbers.clear();
        });
    },

    receive() {
        receiver = connection.open_receiver({
            name: options.subscription, source: source(), credit_window: 0, autoaccept: false, autosettle: false,
        });
        receiver.on('receiver_open', () => {
            if (!receiver.source || !receiver.source.address) return; // refused: what is wrong comes with the detach
            say('attached', { properties: plain(receiver.remote.attach.properties) });
            if (count >= wanted) return end('count');
            receiver.add_credit(wanted - count);
            return tick();
        });
        receiver.on('message', (context) => {
            if (ended) return;
            show(context.message);
            count++;
            tick();
            if (options.outcome === 'none') return;
            if (options.acknowledge === 'auto') settle(context.delivery);
            else kept.push(context.delivery);
            if (count >= wanted) end('count');
        });
        receiver.on('receiver_close', () => receiver.error || end('detached'));
    },

    request() {
        let sender = null;
        let reply_to = null;
        const ask = () => {
            sender.send({ ...message(count), reply_to, correlation_id: `c-${count}` });
            tick();
        };
        receiver = connection.open_receiver({ source: { dynamic: true } });
        receiver.on('receiver_open', () => {
            reply_to = receiver.source.address;
            say('attached', { reply_to });
            sender = connection.open_sender(options.address);
            sender.once('sendable', ask);
        });
        receiver.on('message', ({ message: reply }) => {
            say('message', { body: reply.body, n: count, correlated: reply.correlation_id === `c-${count}` });
            if (++count === wanted) end('count');
            else ask();
        });
    },

    reply() {
        const relay = connection.open_sender({ target: {} });
        receiver = connection.open_receiver(options.address);
        receiver.on('receiver_open', () => say('attached') || tick());
        receiver.on('message', ({ message: asked }) => {
            const { reply_to: to, correlation_id, body } = asked;
            relay.send({ to, correlation_id, body: `re: ${body}` });
            show(asked);
        });
        relay.on('accepted', () => ++count === wanted && end('count'));
    },

    unsubscribe() {
        const link = connection.open_receiver({ name: options.subscription, source: null, credit_window: 0 });
        link.local.attach.source = null;
        link.on('receiver_open', () => {
            say('attached');
            link.close();
        });
        link.on('receiver_close', () => link.error || end('count'));
    },
};

function way() {
    const gateways = options.url.split(',').map((url) => new URL(url));
    const [{ protocol }] = gateways;
    if (!protocol.startsWith('ws')) {
        let next = 0; // each attempt is made at the next of them
        const there = () => gateways[next++ % gateways.length];
        return { connection_details: () => (({ hostname: host, port }) => ({ host, port: Number(port) }))(there()) };
    }
    const over = container.websocket_connect(require('ws').WebSocket);
    return { connection_details: over(options.url, ['amqp'], {}) };
}

connection = container.connect({ ...way(), reconnect: options.reconnect });
connection.on('sender_error', (context) => options.reconnect || fail('sender_error', context.sender.error));
connection.on('receiver_error', (context) => options.reconnect || fail('receiver_error', context.receiver.error));
connection.on('connection_error', (context) => options.reconnect || fail('connection_error', context.connection.error));
connection.on('disconnected', (context) => options.reconnect || fail('disconnected', context.error));
if (!VERBS.includes(verb)) throw new Error(`no verb ${verb}`);
(programs[verb] || programs.receive)();
