#include "allocator/runtime/ranks.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <optional>

#include "allocator/base/numbers.h"

namespace firn {

namespace {

constexpr unsigned ranks_most = 1024;

std::optional<unsigned> number(const char* variable) {
  const char* text = ::secure_getenv(variable);
  if (text == nullptr) return std::nullopt;
  return as_number<unsigned>(text);
}

/// Assigns each row a column of its own at the least sum (the Hungarian method, by shortest
/// augmenting paths; at least as many columns as rows). Equal sums: earlier rows get earlier
/// columns, if nothing else decides. Returns each row's column.
std::vector<size_t> assign(const std::vector<std::vector<int64_t>>& cost) {
  constexpr int64_t far = std::numeric_limits<int64_t>::max() / 2;
  const size_t rows = cost.size(), columns = rows == 0 ? 0 : cost[0].size();
  std::vector<int64_t> of_row(rows + 1), of_column(columns + 1);  // potentials; [0] is a helper
  std::vector<size_t> taken_by(columns + 1, 0), before(columns + 1, 0);
  for (size_t row = 1; row <= rows; ++row) {
    std::vector<int64_t> least(columns + 1, far);
    std::vector<bool> seen(columns + 1, false);
    size_t at = 0;
    taken_by[0] = row;
    do {
      seen[at] = true;
      int64_t step = far;
      size_t next = 0;
      for (size_t column = 1; column <= columns; ++column) {
        if (seen[column]) continue;
        const size_t from = taken_by[at];
        const int64_t reduced = cost[from - 1][column - 1] - of_row[from] - of_column[column];
        if (reduced < least[column]) {
          least[column] = reduced;
          before[column] = at;
        }
        if (least[column] < step) {
          step = least[column];
          next = column;
        }
      }
      for (size_t column = 0; column <= columns; ++column) {
        if (seen[column]) {
          of_row[taken_by[column]] += step;
          of_column[column] -= step;
        } else {
          least[column] -= step;
        }
      }
      at = next;
    } while (taken_by[at] != 0);
    for (; at != 0; at = before[at]) taken_by[at] = taken_by[before[at]];
  }
  std::vector<size_t> column_of(rows);
  for (size_t column = 1; column <= columns; ++column)
    if (taken_by[column] != 0) column_of[taken_by[column] - 1] = column - 1;
  return column_of;
}

}  // namespace

LocalRank local_rank() {
  constexpr const char* names[][2] = {
      {"LOCAL_RANK", "LOCAL_WORLD_SIZE"},                           // torchrun
      {"LOCAL_RANK", "LOCAL_SIZE"},                                 // deepspeed
      {"OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"}  // mpirun
  };
  for (const auto& [rank_name, ranks_name] : names) {
    const std::optional<unsigned> rank = number(rank_name), ranks = number(ranks_name);
    if (rank && ranks && *ranks <= ranks_most && *rank < *ranks) return {*rank, *ranks};
  }
  return {};
}

std::vector<size_t> dirs_of_rank(LocalRank who, size_t dirs, const Distances& distances) {
  std::vector<size_t> all(dirs);
  std::iota(all.begin(), all.end(), size_t{0});
  const size_t ranks = who.ranks;
  if (ranks < 2 || dirs < 2 || who.rank >= ranks) return all;
  if (dirs < ranks && ranks % dirs != 0) return all;

  // A row for each directory that a rank is to have, a column for each rank that one serves.
  const size_t each_rank = std::max<size_t>(dirs / ranks, 1);
  const size_t each_dir = std::max<size_t>(ranks / dirs, 1);
  std::vector<std::vector<int64_t>> cost(ranks * each_rank,
                                         std::vector<int64_t>(dirs * each_dir, 0));
  // The distance decides; then the order: rank by rank, directory by directory, as written.
  const auto order_most = static_cast<int64_t>(cost.size() * cost.size() * cost[0].size()) + 1;
  for (size_t row = 0; row < cost.size(); ++row)
    for (size_t column = 0; column < cost[row].size(); ++column) {
      const size_t rank = row / each_rank, dir = column / each_dir;
      const bool known = rank < distances.size() && dir < distances[rank].size();
      const auto apart = static_cast<int64_t>(row > column ? row - column : column - row);
      cost[row][column] =
          (known ? static_cast<int64_t>(distances[rank][dir]) : 0) * order_most + apart;
    }
  const std::vector<size_t> column_of = assign(cost);

  std::vector<bool> somebodys(dirs, false);
  for (const size_t column : column_of) somebodys[column / each_dir] = true;
  std::vector<size_t> own;
  for (size_t i = 0; i < each_rank; ++i)
    own.push_back(column_of[who.rank * each_rank + i] / each_dir);
  for (size_t dir = 0; dir < dirs; ++dir)
    if (!somebodys[dir]) own.push_back(dir);
  std::sort(own.begin(), own.end());
  return own;
}

}  // namespace firn
