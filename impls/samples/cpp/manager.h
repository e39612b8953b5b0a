// The manager: fork, copy-on-write, and a prefix cache that gives up its least recently used block.
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "json.h"

using Key = std::pair<long, std::vector<long>>;  // name of the block before, and the tokens: a whole history

struct Sequence {
    std::vector<long> tokens;
    std::vector<int> table;
    std::vector<long> names;  // of its full computed blocks
};

class Manager {
  public:
    const bool cache;

    Manager(long blocks, long size, bool cached) : cache(cached), size_(size) {
        if (blocks < 1 || size < 1) throw Failed{"BadInput", "num_blocks and block_size: 1 or more"};
        owners_.resize(blocks);
        age_.resize(blocks);
        key_of_.resize(blocks);
        for (clock_ = 0; clock_ < blocks; ++clock_) idle_[age_[clock_] = clock_] = static_cast<int>(clock_);
    }

    long add(long seq, std::vector<long> tokens) {
        require_new(seq);
        Sequence s{std::move(tokens), {}, {}};
        const size_t whole = ceil(s.tokens.size());
        size_t revived = 0;
        while (s.tokens.size() > (s.names.size() + 1) * size_) {
            auto hit = found_.find(key(s));
            if (hit == found_.end()) break;
            s.names.push_back(hit->second.first);
            s.table.push_back(hit->second.second);
            revived += owners_[s.table.back()] == 0;
        }
        const size_t hits = s.table.size();
        need(s.tokens.size(), whole - hits + revived);
        for (int block : s.table)  // before others are taken
            if (owners_[block]++ == 0) idle_.erase(age_[block]);
        while (s.table.size() < whole) s.table.push_back(take());
        live_.emplace(seq, std::move(s));
        return static_cast<long>(hits * size_);
    }

    std::vector<std::pair<int, int>> append(long seq, const std::vector<long>& tokens) {
        Sequence& s = sequence(seq);
        const size_t length = s.tokens.size() + tokens.size(), new_blocks = ceil(length) - s.table.size();
        const int tail = s.table.back();
        const bool shared = s.tokens.size() % size_ && owners_[tail] > 1;
        need(length, new_blocks + shared);
        std::vector<std::pair<int, int>> copies;
        if (shared) {  // copy-on-write
            s.table.back() = take();
            --owners_[tail];
            copies.emplace_back(tail, s.table.back());
        }
        for (size_t i = 0; i < new_blocks; ++i) s.table.push_back(take());
        s.tokens.insert(s.tokens.end(), tokens.begin(), tokens.end());
        return copies;
    }

    void commit(long seq, long computed) {
        Sequence& s = sequence(seq);
        if (computed < 0 || computed > static_cast<long>(s.tokens.size()))
            throw Failed{"BadInput", "computed: 0 to the length"};
        while (cache && s.names.size() < computed / size_) {
            const Key name = key(s);
            // Of two equal blocks the first one stays.
            auto entry = found_.try_emplace(name, ++last_name_, s.table[s.names.size()]).first;
            key_of_[entry->second.second] = name;
            s.names.push_back(entry->second.first);
        }
    }

    void fork(long seq, long child) {
        require_new(child);
        Sequence copy = sequence(seq);
        for (int block : copy.table) ++owners_[block];
        live_.emplace(child, std::move(copy));
    }

    void free(long seq) {
        Sequence& s = sequence(seq);
        for (auto block = s.table.rbegin(); block != s.table.rend(); ++block) release(*block);  // the tail goes first
        live_.erase(seq);
    }

    const std::vector<int>& table(long seq) { return sequence(seq).table; }
    long free_blocks() const { return static_cast<long>(idle_.size()); }
    long refcount(long block) const { return block >= 0 && block < (long)owners_.size() ? owners_[block] : 0; }

    Json state() const {
        Json tables, refs, out;
        tables.kind = refs.kind = Json::Map;
        for (const auto& [seq, s] : live_) tables.put(std::to_string(seq), s.table);
        for (size_t b = 0; b < owners_.size(); ++b)
            if (owners_[b]) refs.put(std::to_string(b), owners_[b]);
        return out.put("free", free_blocks()).put("tables", tables).put("refs", refs);
    }

  private:
    const size_t size_;
    std::vector<long> owners_, age_;
    std::map<long, int> idle_;  // age -> block: the first is taken next, those that nobody can find before all
    std::map<Key, std::pair<long, int>> found_;  // -> name and block
    std::vector<std::optional<Key>> key_of_;
    std::map<long, Sequence> live_;
    long clock_ = 0, last_name_ = 0;

    size_t ceil(size_t tokens) const { return (tokens + size_ - 1) / size_; }
    Sequence& sequence(long seq) {
        auto found = live_.find(seq);
        if (found == live_.end()) throw Failed{"UnknownSequence", "no live sequence " + std::to_string(seq)};
        return found->second;
    }
    void require_new(long seq) const {
        if (seq < 0 || live_.count(seq)) throw Failed{"BadInput", "sequence id: negative or in use"};
    }
    void need(size_t tokens, size_t blocks) const {
        if (tokens > owners_.size() * size_) throw Failed{"Refused", "more tokens than ever fit"};
        if (blocks > idle_.size()) throw Failed{"OutOfBlocks", std::to_string(blocks) + " blocks needed"};
    }
    Key key(const Sequence& s) const {  // of the block behind those that have a name
        auto from = s.tokens.begin() + static_cast<long>(s.names.size() * size_);
        return {s.names.empty() ? 0 : s.names.back(), {from, from + static_cast<long>(size_)}};
    }
    int take() {
        int block = idle_.begin()->second;
        idle_.erase(idle_.begin());
        if (key_of_[block]) found_.erase(*key_of_[block]);
        key_of_[block].reset();
        owners_[block] = 1;
        return block;
    }
    void release(int block) {
        if (--owners_[block]) return;
        ++clock_;
        idle_[age_[block] = key_of_[block] ? clock_ : -clock_] = block;
    }
};
