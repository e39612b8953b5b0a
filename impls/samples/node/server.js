// A block manager with fork and prefix cache that speaks kvproof's protocol. No package is needed.
//   kvproof conformance --impl "process:node server.js"
"use strict";

const fs = require("node:fs");
const readline = require("node:readline");
const { Failed, Manager } = require("./manager.js");

let manager = null;

function open({ profile, num_blocks, block_size, cache }) {
  if (profile === "scheduler") throw new Failed("Unsupported", "no scheduler here");
  manager = new Manager(num_blocks, block_size, cache !== false);
  const capabilities = ["fork", "copies", "refcount", "multi", "defer"];
  if (manager.cache) capabilities.push("prefix");
  // guard: a hit has compared every token
  return { name: "sample in JavaScript", capabilities, guard: "tokens", policy: { evict: "lru-tail" } };
}

const CALLS = {
  add: (m) => manager.add(m.seq, m.tokens),
  append: (m) => manager.append(m.seq, m.tokens),
  commit: (m) => manager.commit(m.seq, m.computed),
  fork: (m) => manager.fork(m.seq, m.child),
  free: (m) => manager.free(m.seq),
  table: (m) => manager.table(m.seq),
  free_blocks: () => manager.freeBlocks(),
  refcount: (m) => manager.refcount(m.block),
  state: () => manager.state(),
};

function call(message) {
  if (!Object.hasOwn(CALLS, message.op)) throw new Failed("Unsupported", `no request ${message.op}`);
  if (manager === null) throw new Failed("Refused", "open comes first");
  return CALLS[message.op](message);
}

function run({ ops }) { // all of it is parsed
  const start = process.hrtime.bigint();
  const results = ops.map((one) => answer(call, one));
  return { results, ns: Number(process.hrtime.bigint() - start) };
}

function answer(work, message) {
  try {
    return { ok: work(message) };
  } catch (error) {
    if (error instanceof Failed) return { err: error.err, msg: error.message };
    return { err: "Internal", msg: String(error) };
  }
}

function line(text) {
  let message;
  try {
    message = JSON.parse(text);
  } catch {
    return { err: "BadInput", msg: "not JSON" };
  }
  return answer({ open, run }[message.op] ?? call, message);
}

readline.createInterface({ input: process.stdin }).on("line", (text) => {
  fs.writeSync(1, JSON.stringify(line(text)) + "\n");
});
