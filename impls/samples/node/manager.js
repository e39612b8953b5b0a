// The manager: fork, copy-on-write, and a prefix cache that gives up its least recently used block.
"use strict";

class Failed extends Error {
  constructor(err, msg) {
    super(msg);
    this.err = err;
  }
}

class Manager {
  constructor(blocks, size, cache) {
    if (!(blocks >= 1 && size >= 1)) throw new Failed("BadInput", "num_blocks and block_size: 1 or more");
    this.size = size;
    this.cache = cache;
    this.blocks = blocks;
    this.owners = new Int32Array(blocks);
    this.blank = Array.from({ length: blocks }, (_, i) => blocks - 1 - i); // nobody can find these; the last is next
    this.idle = new Set(); // published blocks without owners, the least recently used one first
    this.found = new Map(); // key -> [name, block]; a key is the name of the block before and the tokens
    this.keyOf = new Map();
    this.live = new Map();
    this.lastName = 0;
  }

  add(seq, tokens) {
    this.requireNew(seq);
    requireTokens(tokens);
    const names = [], table = [];
    while (tokens.length > (names.length + 1) * this.size) {
      const hit = this.found.get(this.key(names, tokens));
      if (hit === undefined) break;
      names.push(hit[0]);
      table.push(hit[1]);
    }
    const hits = table.length, whole = Math.ceil(tokens.length / this.size);
    this.need(tokens.length, whole - hits + table.filter((b) => this.owners[b] === 0).length);
    for (const block of table) { // before others are taken
      if (this.owners[block]++ === 0) this.idle.delete(block);
    }
    while (table.length < whole) table.push(this.take());
    this.live.set(seq, { tokens: tokens.slice(), table, names });
    return hits * this.size;
  }

  append(seq, tokens) {
    requireTokens(tokens);
    const s = this.sequence(seq), length = s.tokens.length + tokens.length;
    const fresh = Math.ceil(length / this.size) - s.table.length, tail = s.table[s.table.length - 1];
    const shared = s.tokens.length % this.size > 0 && this.owners[tail] > 1;
    this.need(length, fresh + shared);
    const copies = [];
    if (shared) { // copy-on-write
      s.table[s.table.length - 1] = this.take();
      this.owners[tail]--;
      copies.push([tail, s.table[s.table.length - 1]]);
    }
    for (let i = 0; i < fresh; i++) s.table.push(this.take());
    for (const token of tokens) s.tokens.push(token);
    return copies;
  }

  commit(seq, computed) {
    const s = this.sequence(seq);
    if (!(computed >= 0 && computed <= s.tokens.length)) throw new Failed("BadInput", "computed: 0 to the length");
    while (this.cache && s.names.length < Math.floor(computed / this.size)) {
      const key = this.key(s.names, s.tokens);
      let entry = this.found.get(key); // of two equal blocks the first one stays
      if (entry === undefined) {
        entry = [++this.lastName, s.table[s.names.length]];
        this.found.set(key, entry);
        this.keyOf.set(entry[1], key);
      }
      s.names.push(entry[0]);
    }
    return null;
  }

  fork(seq, child) {
    this.requireNew(child);
    const s = this.sequence(seq);
    for (const block of s.table) this.owners[block]++;
    this.live.set(child, { tokens: s.tokens.slice(), table: s.table.slice(), names: s.names.slice() });
    return [];
  }

  free(seq) {
    const { table } = this.sequence(seq);
    this.live.delete(seq);
    for (let i = table.length - 1; i >= 0; i--) { // the tail is reused first
      const block = table[i];
      if (--this.owners[block] === 0) this.keyOf.has(block) ? this.idle.add(block) : this.blank.push(block);
    }
    return null;
  }

  table(seq) {
    return this.sequence(seq).table.slice(); // a result of a run is written later
  }

  freeBlocks() {
    return this.blank.length + this.idle.size;
  }

  refcount(block) {
    return this.owners[block] || 0;
  }

  state() {
    const tables = {}, refs = {};
    for (const [seq, s] of this.live) {
      tables[seq] = s.table;
      for (const block of s.table) refs[block] = this.owners[block];
    }
    return { free: this.freeBlocks(), tables, refs };
  }

  sequence(seq) {
    const s = this.live.get(seq);
    if (s === undefined) throw new Failed("UnknownSequence", `no live sequence ${seq}`);
    return s;
  }

  requireNew(seq) {
    if (!Number.isInteger(seq) || seq < 0 || this.live.has(seq)) {
      throw new Failed("BadInput", `sequence id ${seq}: an integer, not negative, not in use`);
    }
  }

  need(tokens, blocks) {
    if (tokens > this.blocks * this.size) throw new Failed("Refused", `${tokens} tokens never fit`);
    if (blocks > this.freeBlocks()) throw new Failed("OutOfBlocks", `${blocks} blocks needed, ${this.freeBlocks()} free`);
  }

  key(names, tokens) { // of the block behind those that have a name
    const from = names.length * this.size;
    return `${names.length ? names[names.length - 1] : 0}:${tokens.slice(from, from + this.size)}`;
  }

  take() {
    let block = this.blank.pop();
    if (block === undefined) {
      block = this.idle.values().next().value;
      this.idle.delete(block);
      this.found.delete(this.keyOf.get(block));
      this.keyOf.delete(block);
    }
    this.owners[block] = 1;
    return block;
  }
}

function requireTokens(tokens) {
  if (!Array.isArray(tokens) || !tokens.length || !tokens.every(Number.isInteger)) {
    throw new Failed("BadInput", "tokens: a list of at least one integer is needed");
  }
}

module.exports = { Failed, Manager };
