// A block manager with fork and prefix cache that speaks kvproof's protocol. Standard library only.
//   g++ -std=c++17 -O2 -o server server.cpp && kvproof conformance --impl process:./server
#include <chrono>
#include <iostream>
#include <memory>

#include "manager.h"

static std::unique_ptr<Manager> manager;

static Json describe() {
    std::vector<std::string> names = {"fork", "copies", "refcount", "multi", "defer"};
    if (manager->cache) names.push_back("prefix");
    Json policy, out;
    policy.put("evict", "lru-tail");
    // guard: a hit has compared every token
    return out.put("name", "sample in C++").put("capabilities", names).put("guard", "tokens").put("policy", policy);
}

static Json open(const Json& message) {
    if (message.word("profile") == "scheduler") throw Failed{"Unsupported", "no scheduler here"};
    const Json* cache = message.find("cache");
    const bool cached = !cache || cache->kind != Json::Bool || cache->number;
    manager = std::make_unique<Manager>(message.integer("num_blocks"), message.integer("block_size"), cached);
    return describe();
}

static Json call(const Json& message) {
    const std::string op = message.word("op");
    Json nothing, none;
    none.kind = Json::List;
    if (!manager) throw Failed{"Refused", "open comes first"};
    if (op == "add") return manager->add(message.integer("seq"), message.integers("tokens"));
    if (op == "append") {
        for (auto [from, to] : manager->append(message.integer("seq"), message.integers("tokens")))
            none.items.emplace_back(std::vector<int>{from, to});
        return none;
    }
    if (op == "commit") return manager->commit(message.integer("seq"), message.integer("computed")), nothing;
    if (op == "fork") return manager->fork(message.integer("seq"), message.integer("child")), none;
    if (op == "free") return manager->free(message.integer("seq")), nothing;
    if (op == "table") return manager->table(message.integer("seq"));
    if (op == "free_blocks") return manager->free_blocks();
    if (op == "refcount") return manager->refcount(message.integer("block"));
    if (op == "state") return manager->state();
    throw Failed{"Unsupported", "no request " + op};
}

template <typename Do> static Json answered(Do&& work) {
    Json out;
    try {
        out.put("ok", work());
    } catch (const Failed& failed) { out.put("err", failed.err).put("msg", failed.msg); }
    return out;
}

static Json run(const Json& ops) {  // all of it is parsed
    Json results, out;
    results.kind = Json::List;
    results.items.reserve(ops.items.size());
    const auto start = std::chrono::steady_clock::now();
    for (const Json& one : ops.items) results.items.push_back(answered([&] { return call(one); }));
    const auto spent = std::chrono::steady_clock::now() - start;
    const long ns = std::chrono::duration_cast<std::chrono::nanoseconds>(spent).count();
    return out.put("results", results).put("ns", ns);
}

int main() {
    for (std::string line; std::getline(std::cin, line);) {
        const Json answer = answered([&] {
            const Json message = Reader(line).value();
            const Json* ops = message.find("ops");
            return message.word("op") == "open" ? open(message) : ops ? run(*ops) : call(message);
        });
        std::string out;
        write(answer, out);
        std::cout << out << std::endl;
    }
}
