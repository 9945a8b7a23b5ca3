// Beam search: sentences that are searched together, from source tokens to hypotheses. hypotheses.py
// and beam.py have the same in Python, which is slower, but knows more: constraints that read texts,
// phrases, every device.

#pragma once

#include <cmath>

#include "lane.h"

namespace specdec {

// How a sentence is searched for.
struct SearchOptions {
  enum Finishing { fairseq, first, likely, never };  // as in BeamParams
  std::vector<int64_t> forced;  // tokens after the start token
  int64_t start, size, max_len, min_len;
  double length_penalty;
  float unknown_penalty;
  int finishing;
  int64_t num_opening;
};

struct Emitted {
  std::vector<int64_t> tokens;  // forced ones and the end included
  double score;
  std::vector<double> log_probs;
};

// The hypotheses of one sentence.
class Search {
 public:
  // A hypothesis that may go on: what it extends (-1 = what is forced), and a token.
  struct Open {
    int64_t before, token, position;
    double total;
    int64_t place;               // of the token in the cache
    std::vector<uint64_t> seen;  // the places of all tokens, as bits
  };
  struct Found {
    double total;
    int64_t parent, token;
  };

  explicit Search(SearchOptions options) : own(std::move(options)), length(own.forced.size()) {
    check(own.size > 0 && own.max_len > 0, "there is nothing to search for");
    std::vector<int64_t> tokens = own.forced;
    tokens.insert(tokens.begin(), own.start);
    std::vector<uint64_t> seen;
    for (int64_t i = 0; i < int64_t(tokens.size()); ++i) {
      if (i % 64 == 0) seen.push_back(0);
      seen.back() |= uint64_t(1) << i % 64;
      feeds.push_back({-1, tokens[i], i, 0.0, i, seen});
    }
    forced_log_probs.assign(own.forced.size(), 0.0);
    if (own.finishing != SearchOptions::fairseq)
      uncounted_ = std::max<int64_t>(0, length + 1 - own.num_opening);
  }

  bool counts_forced() const {
    return steps == 0 && feeds.size() > 1 && own.finishing == SearchOptions::fairseq;
  }
  bool must_end() const { return length + 1 >= own.max_len && own.finishing == SearchOptions::fairseq; }
  bool may_end() const { return must_end() || length >= own.min_len; }
  int64_t first_open() const { return first_open_; }
  // Places of the sentence's tokens that the next step reads or writes.
  int64_t num_places() const {
    int64_t most = 0;
    for (const Open& feed : feeds) most = std::max(most, 64 * int64_t(feed.seen.size()));
    return most;
  }

  // Takes a step; found: the 2 * size best, or all that there are, the best first.
  void advance(const std::vector<Found>& found, int64_t eos) {
    ++steps;
    ++length;
    const bool is_last = length >= own.max_len;
    std::vector<Emitted> ended;
    std::vector<Found> going;
    for (size_t rank = 0; rank < found.size(); ++rank) {
      if (found[rank].token == eos || is_last) {
        if (int64_t(rank) < own.size) ended.push_back(emitted(found[rank]));
      } else if (int64_t(going.size()) < own.size) {
        going.push_back(found[rank]);
      }
    }
    if (!ended.empty()) keep(std::move(ended));
    is_over = is_last || going.empty() || is_settled(going.front().total);
    if (!is_over) go_on(going);
  }

  void fail() {
    ++steps;
    is_over = true;
    results.clear();
  }

  const SearchOptions own;
  std::vector<Open> feeds;  // what is read next; those from `first_open` on are open
  std::vector<double> forced_log_probs;
  std::vector<Emitted> results;  // the best first
  int64_t length, steps = 0;
  bool is_over = false;

 private:
  struct Node {
    int64_t before, token;
    double log_prob;
  };

  Emitted emitted(const Found& found) const {
    const Open& parent = feeds[first_open_ + found.parent];
    Emitted said{{found.token}, found.total / norm(length), {found.total - parent.total}};
    for (int64_t node = parent.before; node >= 0; node = nodes_[node].before) {
      said.tokens.push_back(nodes_[node].token);
      said.log_probs.push_back(nodes_[node].log_prob);
    }
    said.tokens.insert(said.tokens.end(), own.forced.rbegin(), own.forced.rend());
    said.log_probs.insert(said.log_probs.end(), forced_log_probs.rbegin(),
                          forced_log_probs.rend());
    std::reverse(said.tokens.begin(), said.tokens.end());
    std::reverse(said.log_probs.begin(), said.log_probs.end());
    return said;
  }

  double norm(int64_t tokens) const {
    return std::pow(double(tokens - uncounted_), own.length_penalty);
  }

  // Keeps `size` of those that have ended: for fairseq the first, else the best.
  void keep(std::vector<Emitted> ended) {
    const size_t size = size_t(own.size);
    if (own.finishing == SearchOptions::fairseq)
      ended.resize(std::min(ended.size(), size - results.size()));
    for (Emitted& one : ended) results.push_back(std::move(one));
    std::stable_sort(results.begin(), results.end(),
                     [](const Emitted& a, const Emitted& b) { return a.score > b.score; });
    if (results.size() > size) results.resize(size);
  }

  bool is_settled(double best) const {
    if (int64_t(results.size()) < own.size) return false;
    if (own.finishing == SearchOptions::fairseq || own.finishing == SearchOptions::first) return true;
    const bool looks_ahead = own.finishing == SearchOptions::never && own.length_penalty > 0;
    return best / norm(looks_ahead ? own.max_len : length) <= results.back().score;
  }

  // Each token gets the lowest place that no hypothesis sees.
  void go_on(const std::vector<Found>& going) {
    std::vector<uint64_t> used;
    for (const Found& one : going) {
      const std::vector<uint64_t>& seen = feeds[first_open_ + one.parent].seen;
      if (seen.size() > used.size()) used.resize(seen.size());
      for (size_t i = 0; i < seen.size(); ++i) used[i] |= seen[i];
    }
    std::vector<Open> open;
    for (const Found& one : going) {
      const Open& parent = feeds[first_open_ + one.parent];
      size_t word = 0;
      while (word < used.size() && used[word] == ~uint64_t(0)) ++word;
      if (word == used.size()) used.push_back(0);
      const int bit = __builtin_ctzll(~used[word]);
      used[word] |= uint64_t(1) << bit;
      std::vector<uint64_t> seen = parent.seen;
      if (seen.size() <= word) seen.resize(word + 1);
      seen[word] |= uint64_t(1) << bit;
      nodes_.push_back({parent.before, one.token, one.total - parent.total});
      open.push_back({int64_t(nodes_.size()) - 1, one.token, length, one.total,
                      int64_t(word) * 64 + bit, std::move(seen)});
    }
    feeds = std::move(open);
    first_open_ = 0;
  }

  int64_t uncounted_ = 0;
  int64_t first_open_ = int64_t(own.forced.size());
  std::vector<Node> nodes_;
};

// Sentences that are searched together.
class Searches {
 public:
  // banned: tokens that are never emitted.
  Searches(std::shared_ptr<Verifying> verifier, int64_t eos, int64_t unk,
           std::vector<int64_t> banned)
      : verifier_(std::move(verifier)), eos_(eos), unk_(unk), banned_(std::move(banned)) {
    check_token(eos, num_types());
    check_token(unk, num_types());
  }

  // sources: without padding.
  void admit(const std::vector<std::vector<int64_t>>& sources, std::vector<SearchOptions> asked,
             int threads) {
    check_same("searches", sources.size(), asked.size());
    const size_t before = rows_.size();
    for (SearchOptions& own : asked)
      rows_.push_back({std::make_unique<Search>(std::move(own)), {}, {}, {}});
    std::vector<Row*> rows;
    for (size_t i = before; i < rows_.size(); ++i) rows.push_back(&rows_[i]);
    for_parts(rows, threads, [&](const std::vector<Row*>& own, int, int team) {
      std::vector<const std::vector<int64_t>*> joining;
      for (const Row* row : own) joining.push_back(&sources[row - &rows_[before]]);
      const Memory states = encode(verifier_->encoder, joining, team);
      remember(verifier_->keys_values, states.get(), joining, own, &Row::source, team);
    });
  }

  // Keeps these searches, in this order.
  void select(const std::vector<int>& kept) {
    std::vector<Row> rows;
    for (int row : kept) rows.push_back(std::move(rows_.at(row)));
    rows_ = std::move(rows);
  }

  void stop(int row) { rows_.at(row).search->is_over = true; }

  const Search& of(int row) const { return *rows_.at(row).search; }

  // Steps until a search is over, at most so many; returns those that are.
  std::vector<int> run(int most, int threads) {
    std::vector<int> over;
    rooms_.resize(std::max<size_t>(rooms_.size(), threads));
    for (bool goes_on = true; most > 0 && goes_on && over.empty(); --most) {
      std::vector<Row*> going;
      for (Row& row : rows_)
        if (!row.search->is_over) going.push_back(&row);
      goes_on = !going.empty();
      for_parts(going, threads, [&](const std::vector<Row*>& own, int part, int team) {
        step(own, rooms_[part], team);
      });
      for (size_t i = 0; i < rows_.size(); ++i)
        if (const Row& row = rows_[i]; row.search->is_over && !row.is_told) over.push_back(int(i));
    }
    for (int row : over) rows_[row].is_told = true;
    return over;
  }

 private:
  struct Row {
    std::unique_ptr<Search> search;
    SourceMemory source;
    OwnMemory own;
    std::vector<int64_t> held;  // the position of what each place holds
    bool is_told = false;  // that it is over
  };
  // What a pass over a part of the searches writes.
  struct Room {
    std::vector<float> states, logits;
  };
  struct Reading {
    float* logits = nullptr;      // [rows, V], of the positions whose output is wanted
    std::vector<int> owners;      // [rows] the search of each
    std::vector<int64_t> starts;  // the first row of each search
  };

  int64_t num_types() const { return verifier_->output->linear.out; }

  void step(const std::vector<Row*>& rows, Room& room, int threads) const {
    const Reading reading = read(rows, room, threads);
    const int64_t width = num_types(), num_rows = int64_t(reading.owners.size());
    std::vector<double> totals(num_rows);
    std::vector<std::vector<Candidate>> best(num_rows);
    const Isa& isa = best_isa();
    for_rows(num_rows, threads, [&](int64_t row) {
      float* own = reading.logits + row * width;
      const Search& search = *rows[reading.owners[row]]->search;
      totals[row] = double(isa.log_total_of(own, int(width)));
      if (search.own.unknown_penalty != 0) own[unk_] -= search.own.unknown_penalty;
      if (search.must_end()) {
        best[row] = {{own[eos_], eos_}};
        return;
      }
      const int64_t count = std::min<int64_t>(width, 2 * search.own.size + banned_.size() + 1);
      best[row].resize(count);
      isa.largest_of(own, int(width), int(count), best[row].data());
    });
    for (size_t i = 0; i < rows.size(); ++i) {
      Search& search = *rows[i]->search;
      int64_t first = reading.starts[i];
      if (search.counts_forced()) first = count_forced(search, reading.logits, totals, first);
      conclude(search, first, totals, best);
    }
  }

  // One pass over the ends of all open hypotheses, and at first over what is forced.
  Reading read(const std::vector<Row*>& rows, Room& room, int threads) const {
    const Stack& stack = *verifier_->decoder.stack;
    Reading reading;
    Plan plan;
    std::vector<int64_t> tokens, positions;
    size_t num_seen = 0;
    for (const Row* row : rows)
      for (const Search::Open& feed : row->search->feeds) num_seen += 64 * feed.seen.size();
    std::vector<float> masks(num_seen);  // never resized: places point into both
    std::vector<int64_t> distances(stack.is_relative() ? num_seen : 0);
    float* mask = masks.data();
    int64_t* distance = distances.data();
    for (size_t i = 0; i < rows.size(); ++i) {
      const Search& search = *rows[i]->search;
      rows[i]->own.reserve(stack.size(), search.num_places(), stack.cached());
      std::vector<int64_t>& held = rows[i]->held;
      held.resize(std::max<size_t>(held.size(), search.num_places()));
      for (const Search::Open& feed : search.feeds) held[feed.place] = feed.position;
      reading.starts.push_back(int64_t(plan.asked.size()));
      for (size_t j = 0; j < search.feeds.size(); ++j) {
        const Search::Open& feed = search.feeds[j];
        if (int64_t(j) >= search.first_open() || search.counts_forced()) {
          plan.asked.push_back(int64_t(tokens.size()));
          reading.owners.push_back(int(i));
        }
        tokens.push_back(feed.token);
        positions.push_back(feed.position);
        int width = 64 * int(feed.seen.size()) - __builtin_clzll(feed.seen.back());
        for (int t = 0; t < width; ++t)
          mask[t] = feed.seen[t / 64] >> t % 64 & 1 ? 0.0f : -INFINITY;
        plan.places.push_back({int(i), feed.place, width, mask, nullptr});
        mask += width;
        if (!stack.is_relative()) continue;
        plan.places.back().distances = distance;
        for (int t = 0; t < width; ++t) *distance++ = held[t] - feed.position;
      }
    }
    hold(plan, rows, &Row::source, &Row::own, stack.size());
    const int64_t asked = int64_t(plan.asked.size()), dim = stack.dim();
    auto& [states, logits] = room;
    states.resize(std::max<size_t>(states.size(), asked * dim));
    logits.resize(std::max<size_t>(logits.size(), asked * num_types()));
    verifier_->decoder.read(plan, tokens, positions, stack.size(), states.data(), threads);
    verifier_->output->multiply(view<const float>(states.data(), asked, dim),
                                view(logits.data(), asked, num_types()), threads);
    reading.logits = logits.data();
    return reading;
  }

  // Adds the forced tokens' share to the only open hypothesis; returns its row.
  int64_t count_forced(Search& search, const float* logits, const std::vector<double>& totals,
                       int64_t row) const {
    double total = 0;
    for (size_t i = 0; i < search.own.forced.size(); ++i, ++row) {
      const int64_t token = search.own.forced[i];
      check_token(token, num_types());
      search.forced_log_probs[i] = double(logits[row * num_types() + token]) - totals[row];
      total += search.forced_log_probs[i];
    }
    search.feeds.back().total = total;
    return row;
  }

  void conclude(Search& search, int64_t first, const std::vector<double>& totals,
                const std::vector<std::vector<Candidate>>& best) const {
    const int64_t num_open = int64_t(search.feeds.size()) - search.first_open();
    std::vector<Search::Found> all, found;
    for (int64_t parent = 0; parent < num_open; ++parent) {
      const double total = totals[first + parent];
      if (!(total < INFINITY)) return search.fail();  // or no number
      const double before = search.feeds[search.first_open() + parent].total - total;
      for (const Candidate& one : best[first + parent])
        all.push_back({before + double(one.score), parent, one.token});
    }
    std::stable_sort(all.begin(), all.end(), [](const Search::Found& a, const Search::Found& b) {
      return a.total > b.total;
    });
    const bool may_end = search.may_end();
    for (const Search::Found& one : all) {
      if (int64_t(found.size()) == 2 * search.own.size || one.total == -INFINITY) break;
      const bool is_banned = (one.token == eos_ && !may_end) ||
                             std::find(banned_.begin(), banned_.end(), one.token) != banned_.end();
      if (!is_banned) found.push_back(one);
    }
    search.advance(found, eos_);
  }

  const std::shared_ptr<Verifying> verifier_;
  const int64_t eos_, unk_;
  const std::vector<int64_t> banned_;
  std::vector<Row> rows_;
  std::vector<Room> rooms_;  // one for each part of the rows
};

}  // namespace specdec
