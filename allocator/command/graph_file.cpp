// Locks: none.
#include "allocator/command/graph_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "allocator/runtime/config.h"

namespace firn::command {
namespace {

using order::Life;
using simulate::CsvFile;

constexpr size_t id_bytes_max = 256;
constexpr size_t cycle_named_most = 12;

/// Opens it; an unknown column is an error.
Result<CsvFile> open_csv(const std::string& path, std::vector<std::string_view> columns,
                         std::string_view optional = "") {
  Result<CsvFile> file = CsvFile::open(path, columns);
  if (!file) return file.error();
  if (!optional.empty()) columns.push_back(optional);
  for (const std::string& name : file->names()) {
    if (std::find(columns.begin(), columns.end(), name) != columns.end()) continue;
    std::string known;
    for (const std::string_view each : columns)
      known += (known.empty() ? "" : ", ") + std::string(each);
    return file->wrong("unknown column " + quote_word(name) + "; the columns are " + known);
  }
  return file;
}

Result<std::string> id_of(const CsvFile& file, const char* what,
                          const std::unordered_map<std::string, uint32_t>& known) {
  std::string id(file.field(0));
  if (id.empty()) return file.wrong(fmt::format("{}: the id is empty", what));
  if (id.size() > id_bytes_max)
    return file.wrong(fmt::format("{}: the id is longer than {} bytes", what, id_bytes_max));
  // Messages and results name it as it is.
  if (std::any_of(id.begin(), id.end(), [](unsigned char c) {
        return c <= ' ' || c == 0x7f || c == ',' || c == '"';
      }))
    return file.wrong(fmt::format(
        "{} {} contains a blank, a comma, a quote or a control character", what, quote_word(id)));
  if (const auto before = known.find(id); before != known.end())
    return file.wrong(
        fmt::format("{} {} repeats line {}", what, quote_word(id), before->second + 2));
  return id;
}

std::optional<Life> life_of(std::string_view kind) {
  if (kind == "temporary") return Life::made;
  if (kind == "batch") return Life::from_start;
  for (const char* each : {"param", "buffer", "m", "v", "const"})
    if (kind == each) return Life::throughout;
  return {};
}

}  // namespace

Result<GraphFile> GraphFile::read(const std::string& prefix) {
  GraphFile graph;
  graph.storages_path_ = prefix + ".storages.csv";
  graph.ops_path_ = prefix + ".ops.csv";
  if (Result<void> done = graph.read_storages(); !done) return done.error();
  if (Result<void> done = graph.read_ops(); !done) return done.error();
  if (Result<void> done = graph.examine(); !done) return done.error();
  return graph;
}

Result<void> GraphFile::read_storages() {
  Result<CsvFile> file = open_csv(storages_path_, {"storage", "bytes", "kind"});
  if (!file) return file.error();
  for (;;) {
    Result<bool> more = file->next();
    if (!more) return more.error();
    if (!*more) return {};
    if (storages_.size() == rows_most)
      return file->wrong(fmt::format("more than {} storages", rows_most));
    if (Result<void> done = read_storage(*file); !done) return done;
  }
}

Result<void> GraphFile::read_storage(const CsvFile& file) {
  Result<std::string> id = id_of(file, "storage", storage_numbers_);
  if (!id) return id.error();
  Result<uint64_t> bytes = simulate::whole_number(file.field(1), order::bytes_max);
  if (!bytes) return file.wrong("bytes: " + bytes.error().text);
  const std::optional<Life> life = life_of(file.field(2));
  if (!life)
    return file.wrong("kind: " + quote_word(std::string(file.field(2))) +
                      " must be one of param, buffer, m, v, const, batch, temporary");
  storage_numbers_.emplace(*id, static_cast<uint32_t>(storages_.size()));
  storage_ids_.push_back(std::move(*id));
  storages_.push_back({*bytes, *life});
  return {};
}

Result<void> GraphFile::read_ops() {
  Result<CsvFile> file = open_csv(ops_path_, {"op", "inputs", "outputs", "mutates"}, "name");
  if (!file) return file.error();
  for (;;) {
    Result<bool> more = file->next();
    if (!more) return more.error();
    if (!*more) break;
    if (ops_.size() == rows_most)
      return file->wrong(fmt::format("more than {} operators", rows_most));
    if (Result<void> done = read_op(*file); !done) return done;
  }
  if (ops_.empty()) return file->wrong("no operators");
  return {};
}

Result<void> GraphFile::read_op(const CsvFile& file) {
  Result<std::string> id = id_of(file, "op", op_numbers_);
  if (!id) return id.error();
  order::Op op;
  if (Result<void> done = read_list(file, 1, op.reads); !done) return done;
  if (Result<void> done = read_list(file, 2, op.makes); !done) return done;
  if (Result<void> done = read_list(file, 3, op.writes); !done) return done;
  op_numbers_.emplace(*id, static_cast<uint32_t>(ops_.size()));
  op_ids_.push_back(std::move(*id));
  ops_.push_back(std::move(op));
  return {};
}

Result<void> GraphFile::read_list(const CsvFile& file, size_t column, std::vector<uint32_t>& to) {
  constexpr const char* columns[] = {"op", "inputs", "outputs", "mutates"};
  const std::string_view words = file.field(column);
  for (size_t begin = 0; begin < words.size();) {
    const size_t end = std::min(words.find(' ', begin), words.size());
    const std::string word(words.substr(begin, end - begin));
    begin = end + 1;
    if (word.empty()) continue;
    const auto found = storage_numbers_.find(word);
    if (found == storage_numbers_.end())
      return file.wrong(fmt::format("{}: storage {} is not in {}", columns[column],
                                    quote_word(word), storages_path_));
    if (++named_ > named_most)
      return file.wrong(fmt::format("the operators name more than {} storages", named_most));
    to.push_back(found->second);
  }
  return {};
}

Error GraphFile::wrong(const std::string& path, size_t row, const std::string& text) const {
  // One line each, below the header.
  return invalid(fmt::format("{}:{}: {}", path, row + 2, text));
}

std::string GraphFile::in_a_cycle(std::span<const uint32_t> cycle) const {
  std::string text = "operators form a cycle; each needs the one before it:";
  for (size_t i = 0; i < std::min(cycle.size(), cycle_named_most); ++i)
    text += " " + op_ids_[cycle[i]] + ",";
  if (cycle.size() > cycle_named_most)
    text += fmt::format(" {} more,", cycle.size() - cycle_named_most);
  return text + " " + op_ids_[cycle[0]] + " again";
}

Result<void> GraphFile::examine() const {
  using Kind = order::Trouble::Kind;
  const std::optional<order::Trouble> trouble = order::examine(storages_, ops_);
  if (!trouble) return {};
  if (trouble->kind == Kind::bytes)
    return wrong(storages_path_, trouble->storage,
                 fmt::format("bytes: all storages together exceed {}", order::bytes_max));
  if (trouble->kind == Kind::cycle)
    return wrong(ops_path_, trouble->op, in_a_cycle(trouble->cycle));
  const std::string storage = quote_word(storage_ids_[trouble->storage]);
  switch (trouble->kind) {
    case Kind::made_twice:
      return wrong(ops_path_, trouble->op,
                   "outputs: an operator before this one makes storage " + storage + " too");
    case Kind::not_made:
      return wrong(ops_path_, trouble->op, "no operator makes storage " + storage);
    default:
      return wrong(ops_path_, trouble->op,
                   "only a later operator makes storage " + storage);
  }
}

std::string GraphFile::order_text(std::span<const uint32_t> ops) const {
  std::string text = "op\n";
  for (const uint32_t op : ops) text += op_ids_[op] + "\n";
  return text;
}

std::string GraphFile::layout_text(std::span<const uint64_t> offsets) const {
  std::string text = "storage,offset\n";
  for (size_t i = 0; i < offsets.size(); ++i)
    text += fmt::format("{},{}\n", storage_ids_[i], offsets[i]);
  return text;
}

}  // namespace firn::command
