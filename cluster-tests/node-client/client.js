// A program that knows proto/ and nothing else of Hadron: node client.js ADDRESS FOLDER_OF_PROTO|--reflect
// Publishes, subscribes with acknowledgements, runs a transaction; serves an endpoint and calls one;
// subscribes to an exchange and publishes on it. Prints what it saw as JSON.
"use strict";

const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const SERVICES = ["Calls", "Messages", "Records", "Schema"];
const OPTIONS = { keepCase: true, longs: Number, enums: String, defaults: true, oneofs: true };

function fromFiles(folder) {
  const files = SERVICES.map((name) => `hadron/v1/${name.toLowerCase()}.proto`);
  return grpc.loadPackageDefinition(
    loader.loadSync(files, { ...OPTIONS, includeDirs: [folder] }),
  );
}

// All files that the node has for a service, asked of the node itself.
async function fromNode(address) {
  const codec = (decode) => ({ serialize: (data) => data, deserialize: decode });
  const root = require("protobufjs").Root.fromJSON({
    nested: {
      Ask: { fields: { name: { type: "string", id: 3 }, symbol: { type: "string", id: 4 } } },
      Files: { fields: { files: { rule: "repeated", type: "bytes", id: 1 } } },
      Told: { fields: { found: { type: "Files", id: 4 } } },
    },
  });
  const [Ask, Told] = [root.lookupType("Ask"), root.lookupType("Told")];
  const Client = grpc.makeGenericClientConstructor({
    info: {
      path: "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
      requestStream: true,
      responseStream: true,
      requestSerialize: (asked) => Buffer.from(Ask.encode(asked).finish()),
      requestDeserialize: codec().deserialize,
      responseSerialize: codec().serialize,
      responseDeserialize: (data) => Told.decode(data),
    },
  });
  const client = new Client(address, grpc.credentials.createInsecure());
  const files = new Map();
  for (const name of SERVICES) {
    const call = client.info();
    call.write({ symbol: `hadron.v1.${name}` });
    call.end();
    for await (const told of call) {
      for (const data of told.found ? told.found.files : []) {
        files.set(Buffer.from(data).toString("latin1"), Buffer.from(data));
      }
    }
  }
  client.close();
  // A FileDescriptorSet has its files in field 1.
  const parts = [];
  for (const data of files.values()) {
    const length = [];
    let left = data.length;
    for (; left > 127; left = Math.floor(left / 128)) length.push((left % 128) | 128);
    length.push(left);
    parts.push(Buffer.from([10, ...length]), data);
  }
  return grpc.loadPackageDefinition(
    loader.loadFileDescriptorSetFromBuffer(Buffer.concat(parts), OPTIONS),
  );
}

function unary(client, name, request, metadata = new grpc.Metadata()) {
  return new Promise((resolve, reject) =>
    client[name](request, metadata, { deadline: Date.now() + 30000 }, (error, answer) =>
      error ? reject(error) : resolve(answer),
    ),
  );
}

// A map field. Made of descriptors, protobufjs knows it as a list of its entries.
function mapOf(field) {
  return Array.isArray(field)
    ? Object.fromEntries(field.map(({ key, value }) => [key, value]))
    : field;
}

// The next event of a stream, for whoever asks for one after the other.
function events(call) {
  const iterator = call[Symbol.asyncIterator]();
  return async () => (await iterator.next()).value;
}

// Serves an endpoint, and calls one whose server, in Python, asks this one.
async function calls(api, address, credentials, endpoint, asked) {
  const client = new api.Calls(address, credentials);
  const serving = client.Serve();
  serving.write({ open: { endpoint, max_in_flight: 10 } });
  const opened = new Promise((resolve, reject) => {
    serving.on("error", reject);
    serving.on("data", (event) => {
      if (event.opened) resolve();
      if (!event.call) return;
      const { id, value, headers } = event.call;
      const { n } = JSON.parse(value.json);
      if (n < 0) serving.write({ failure: { id, type: "RangeError", message: "below zero" } });
      else
        serving.write({
          answer: { id, value: { json: JSON.stringify({ n: 2 * n, page: mapOf(headers).page }) } },
        });
    });
  });
  await opened;
  const value = (n) => ({ json: JSON.stringify({ n }) });
  const metadata = new grpc.Metadata();
  metadata.set("hadron-header-page", "3");
  const answer = await unary(client, "Call", { endpoint: asked, value: value(21) }, metadata);
  let failed = "";
  try {
    await unary(client, "Call", { endpoint, value: value(-1) });
  } catch (error) {
    failed = `${grpc.status[error.code]} ${error.details}`;
  }
  const streamed = client.CallStream();
  streamed.write({ open: { endpoint: `${asked}-stream` } });
  for (const text of ["a", "b", "c"]) streamed.write({ value: { text } });
  streamed.write({ end: {} });
  const rows = [];
  for await (const event of streamed) if (event.value) rows.push(event.value.text);
  streamed.end();
  const drained = new Promise((resolve) => serving.on("end", resolve));
  serving.write({ drain: {} });
  await drained;
  client.close();
  return { answer: JSON.parse(answer.value.json), failed, rows };
}

async function messages(api, address, credentials, exchange) {
  const client = new api.Messages(address, credentials);
  const subscription = client.Subscribe({ exchange, patterns: ["eu.*"] });
  const next = events(subscription);
  await next();
  const sent = await unary(client, "Publish", {
    exchange,
    messages: ["eu.ibm", "us.ibm"].map((topic) => ({ topic, value: { text: topic } })),
  });
  const { arrived } = await next();
  subscription.on("error", () => {});
  subscription.cancel();
  client.close();
  return { deliveries: sent.deliveries, arrived: arrived.messages.map((each) => each.value.text) };
}

async function main(address, way) {
  const found = way === "--reflect" ? await fromNode(address) : fromFiles(way);
  const stream = way === "--reflect" ? "reflected" : "loaded";
  const api = found.hadron.v1;
  const credentials = grpc.credentials.createInsecure();
  const schema = new api.Schema(address, credentials);
  const records = new api.Records(address, credentials);
  const declared = (kind, spec) => ({
    kind,
    namespace: "default",
    name: stream,
    spec_json: JSON.stringify(spec),
  });
  await unary(schema, "ApplySchema", {
    objects: [
      declared("Stream", { partitions: ["local/p0"] }),
      declared("Endpoint", { replica_set: "local/p0" }),
      declared("Exchange", { replica_set: "local/p0" }),
    ],
  });
  const texts = ["one", "two", "three"];
  const published = await unary(records, "Publish", {
    stream,
    records: texts.map((text) => ({ value: { text }, key: { text: "k" } })),
  });

  const seen = [];
  const member = records.Subscribe();
  const done = new Promise((resolve, reject) => {
    member.on("error", (error) => (seen.length === 3 ? resolve() : reject(error)));
    member.on("end", resolve);
    member.on("data", (event) => {
      if (event.flushed) member.end();
      if (!event.delivery) return;
      seen.push(event.delivery.record.value.text);
      member.write({ ack: { ids: [event.delivery.id] } });
      if (seen.length === texts.length) member.write({ flush: {} });
    });
  });
  member.write({ open: { stream, group: "node" } });
  await done;

  const transaction = records.Transact();
  transaction.write({ begin: {} });
  transaction.write({ publish: { stream, records: [{ value: { text: "four" } }] } });
  transaction.write({ commit: {} });
  transaction.end();
  let committed = null;
  for await (const event of transaction) committed = event.committed || committed;

  const read = [];
  for await (const batch of records.Read({ stream })) {
    for (const each of batch.records) read.push(each.value.text);
  }
  let refused = "";
  try {
    await unary(records, "Publish", { stream: "nowhere", records: [{ value: { text: "x" } }] });
  } catch (error) {
    refused = grpc.status[error.code];
  }
  console.log(
    JSON.stringify({
      count: published.runs.reduce((sum, run) => sum + run.count, 0),
      seen,
      receipts: committed.receipts.length,
      read,
      refused,
      calls: await calls(api, address, credentials, stream, `ask-${stream}`),
      messages: await messages(api, address, credentials, stream),
    }),
  );
  records.close();
  schema.close();
}

main(process.argv[2], process.argv[3]).catch((error) => {
  console.error(error);
  process.exit(1);
});
