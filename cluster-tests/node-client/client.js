// A program that knows proto/ and nothing else of Hadron: node client.js ADDRESS FOLDER_OF_PROTO|--reflect
// Publishes, subscribes with acknowledgements, runs a transaction; prints what it saw as JSON.
"use strict";

const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const OPTIONS = { keepCase: true, longs: Number, enums: String, defaults: true, oneofs: true };

function fromFiles(folder) {
  const files = ["hadron/v1/records.proto", "hadron/v1/schema.proto"];
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
  for (const symbol of ["hadron.v1.Records", "hadron.v1.Schema"]) {
    const call = client.info();
    call.write({ symbol });
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

function unary(client, name, request) {
  return new Promise((resolve, reject) =>
    client[name](request, { deadline: Date.now() + 30000 }, (error, answer) =>
      error ? reject(error) : resolve(answer),
    ),
  );
}

async function main(address, way) {
  const found = way === "--reflect" ? await fromNode(address) : fromFiles(way);
  const stream = way === "--reflect" ? "reflected" : "loaded";
  const api = found.hadron.v1;
  const credentials = grpc.credentials.createInsecure();
  const schema = new api.Schema(address, credentials);
  const records = new api.Records(address, credentials);
  const spec = { partitions: ["local/p0"] };
  await unary(schema, "ApplySchema", {
    objects: [
      { kind: "Stream", namespace: "default", name: stream, spec_json: JSON.stringify(spec) },
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
    }),
  );
  records.close();
  schema.close();
}

main(process.argv[2], process.argv[3]).catch((error) => {
  console.error(error);
  process.exit(1);
});
