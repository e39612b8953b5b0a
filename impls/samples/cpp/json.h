// JSON, as much of it as the protocol needs.
#pragma once

#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

struct Failed {
    const char* err;
    std::string msg;
};

struct Json {
    enum Kind { Null, Bool, Int, Float, Text, List, Map };  // Float: the protocol has none, it is read to be refused
    Kind kind = Null;
    long number = 0;  // of Int and Bool
    std::string text;
    std::vector<Json> items;         // of List, and the values of Map
    std::vector<std::string> names;  // of Map

    Json() = default;
    Json(long n) : kind(Int), number(n) {}
    Json(const char* t) : kind(Text), text(t) {}
    Json(const std::string& t) : kind(Text), text(t) {}
    Json(const std::vector<int>& blocks) : kind(List), items(blocks.begin(), blocks.end()) {}
    Json(const std::vector<std::string>& texts) : kind(List), items(texts.begin(), texts.end()) {}

    Json& put(const std::string& name, Json value) {
        kind = Map;
        names.push_back(name);
        items.push_back(std::move(value));
        return *this;
    }
    const Json* find(std::string_view name) const {
        for (size_t i = 0; i < names.size(); ++i)
            if (names[i] == name) return &items[i];
        return nullptr;
    }
    std::string word(std::string_view name) const {
        const Json* found = find(name);
        return found && found->kind == Text ? found->text : "";
    }
    long integer(std::string_view name) const {
        const Json* found = find(name);
        if (!found || found->kind != Int) throw Failed{"BadInput", std::string(name) + ": an integer is needed"};
        return found->number;
    }
    std::vector<long> integers(std::string_view name) const {
        const Json* found = find(name);
        std::vector<long> out;
        bool good = found && found->kind == List && !found->items.empty();
        for (size_t i = 0; good && i < found->items.size(); ++i) {
            good = found->items[i].kind == Int;
            out.push_back(found->items[i].number);
        }
        if (!good) throw Failed{"BadInput", std::string(name) + ": a list of at least one integer is needed"};
        return out;
    }
};

class Reader {
  public:
    explicit Reader(std::string_view line) : line_(line) {}

    Json value() {
        Json out;
        char c = next();
        if (c == 'n') return expect("ull"), out;
        if (c == 't' || c == 'f') {
            expect(c == 't' ? "rue" : "alse");
            out.kind = Json::Bool;
            out.number = c == 't';
        } else if (c == '"') {
            out = Json(text());
        } else if (c == '[') {
            out.kind = Json::List;
            for (c = next(); c != ']'; c = after(']')) {
                if (c != ',') --at_;
                out.items.push_back(value());
            }
        } else if (c == '{') {
            out.kind = Json::Map;
            for (c = next(); c != '}'; c = after('}')) {
                if (c == ',') c = next();
                if (c != '"') bad();
                std::string name = text();
                if (next() != ':') bad();
                out.put(name, value());
            }
        } else {
            number(out);
        }
        return out;
    }

  private:
    std::string_view line_;
    size_t at_ = 0;

    [[noreturn]] static void bad() { throw Failed{"BadInput", "not JSON"}; }
    char peek() const { return at_ < line_.size() ? line_[at_] : '\0'; }
    char next() {
        while (peek() == ' ' || peek() == '\t' || peek() == '\r') ++at_;
        if (at_ >= line_.size()) bad();
        return line_[at_++];
    }
    char after(char close) {
        char c = next();
        if (c != ',' && c != close) bad();
        return c;
    }
    void expect(std::string_view rest) {
        if (line_.substr(at_, rest.size()) != rest) bad();
        at_ += rest.size();
    }
    std::string text() {
        std::string out;
        for (; peek() != '"'; ++at_) {
            if (at_ >= line_.size()) bad();
            if (peek() == '\\') out += line_[at_++];  // escapes are kept as they are
            out += peek();
        }
        ++at_;
        return out;
    }
    void number(Json& out) {
        size_t start = --at_;
        while (peek() && std::string_view("+-.eE0123456789").find(peek()) != std::string_view::npos) ++at_;
        if (at_ == start) bad();
        std::string digits(line_.substr(start, at_ - start));
        out.kind = digits.find_first_of(".eE") == std::string::npos ? Json::Int : Json::Float;
        out.number = std::strtol(digits.c_str(), nullptr, 10);
    }
};

inline void write(const Json& value, std::string& out) {
    const bool map = value.kind == Json::Map;
    switch (value.kind) {
        case Json::Bool:
            out += value.number ? "true" : "false";
            break;
        case Json::Int:
            out += std::to_string(value.number);
            break;
        case Json::Text:
            out += '"' + value.text + '"';
            break;
        case Json::List:
        case Json::Map:
            out += map ? '{' : '[';
            for (size_t i = 0; i < value.items.size(); ++i) {
                if (i) out += ',';
                if (map) out += '"' + value.names[i] + "\":";
                write(value.items[i], out);
            }
            out += map ? '}' : ']';
            break;
        default:
            out += "null";
    }
}
