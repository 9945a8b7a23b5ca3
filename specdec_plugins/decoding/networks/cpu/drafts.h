// Rows, and how they draft. The classes of the same names in drafters/ are the slow twins.

#pragma once

#include "memory.h"

namespace specdec {

// One request.
struct Asked {
  std::vector<int64_t> source, text;  // source: without padding; text: the start token, and what is forced
  int64_t block_size, max_len, min_len, beta;
  float tau;
  std::vector<int64_t> banned;
  bool with_scores, ends_loops;
  int64_t ngram;  // size of those that occur once; 0 = any may occur again
  float penalty;  // of tokens that the text has
  Drawing drawing;
};

// What one round did to one row.
struct Report {
  enum Ending { none, ended, full, failed, looped };
  int row = 0;
  std::vector<int64_t> drafted, emitted;
  int64_t accepted = 0;
  int ending = none;
  std::vector<double> log_probs;  // of what was emitted, if asked for
  int64_t length = 0;  // of the text now
};

struct Row {
  Asked asked;
  std::vector<int64_t> text;  // committed tokens, the start token first
  bool is_active = true;
  bool is_greedy = true;  // its text is, whatever is drafted
  int64_t budget = 0;  // tokens of the next draft
  std::vector<int64_t> drafted;
  SourceMemory source;
  OwnMemory own;
  int64_t cached = 0;             // tokens of the text there
  const float* states = nullptr;  // [drafted + 1, D] of the last pass
  float* logits = nullptr;        // [drafted + 1, V]
  Report report;                  // of the last round
  // What drafters need.
  bool has_joined = false;
  Memory encoded;  // by the verifier, until the drafter has read it
  SourceMemory drafter_source, copied;
  OwnMemory drafter_own;
  int64_t drafter_cached = 0;    // tokens of the text there, without the start token
  Packed listed;                 // what may be drafted
  std::vector<float> state;      // [D] that gave the last token

  int width() const { return int(asked.source.size()); }
};

// Logits [rows, V] of states [rows, D].
inline Memory logits_of(const PackedWeights& output, const float* states, int64_t rows, int threads) {
  const int64_t width = output.linear.out;
  const Memory logits = memory_of(rows * width);
  output.multiply(view(states, rows, output.linear.in), view(logits.get(), rows, width), threads);
  return logits;
}

inline std::vector<const std::vector<int64_t>*> sources_of(const std::vector<Row*>& rows) {
  std::vector<const std::vector<int64_t>*> sources;
  for (const Row* row : rows) sources.push_back(&row->asked.source);
  return sources;
}

// What a pass of the verifier gave.
struct Verified {
  Aligned<float> states, logits;  // [m, D], [m, V]

  // Reads with the first layers what they have not read of texts and drafts. Gives what is behind each
  // text and each of its drafted tokens, or behind the last alone.
  void read(const Verifying& verifier, const std::vector<Row*>& rows, int layers, bool last_alone,
            int threads) {
    const Stack& stack = *verifier.decoder.stack;
    Plan plan;
    std::vector<int64_t> tokens, positions, counts;
    for (size_t i = 0; i < rows.size(); ++i) {
      Row& row = *rows[i];
      const int64_t known = row.text.size(), stop = known + row.drafted.size();
      row.own.reserve(stack.size(), stop, stack.cached());
      counts.push_back(last_alone ? 1 : row.drafted.size() + 1);
      for (int64_t at = row.cached; at < stop; ++at) {
        if (at >= stop - counts.back()) plan.asked.push_back(tokens.size());
        plan.places.push_back({int(i), at, int(at) + 1, nullptr});
        tokens.push_back(at < known ? row.text[at] : row.drafted[at - known]);
        positions.push_back(at);
      }
    }
    hold(plan, rows, &Row::source, &Row::own, layers);
    const int64_t asked = plan.asked.size(), dim = stack.dim(), width = verifier.output->linear.out;
    if (plan.asked.size() == tokens.size()) plan.asked.clear();
    states.grow(asked * dim);
    logits.grow(asked * width);
    verifier.decoder.read(plan, tokens, positions, layers, states.data, threads);
    verifier.output->multiply(view<const float>(states.data, asked, dim),
                              view(logits.data, asked, width), threads);
    int64_t first = 0;
    for (size_t i = 0; i < rows.size(); first += counts[i++]) {
      rows[i]->states = states.data + first * dim;
      rows[i]->logits = logits.data + first * width;
    }
  }
};

// Drafts for the rows of one lane; for several parts of them at the same time.
class Drafter {
 public:
  virtual ~Drafter() = default;

  // Called before each draft with all rows that are not finished.
  virtual void join(const std::vector<Row*>& rows, int threads) const { (void)rows, (void)threads; }

  // Fills `drafted`, which is empty, of rows that have a budget.
  virtual void draft(const std::vector<Row*>& rows, int threads) const = 0;

  int64_t max_positions = INT64_MAX;  // of a text, less the start token, and its draft
  bool shares_encoder = false;        // reads what the verifier has encoded
};

// Drafts the best token of each position, up to an end of sentence: logits [rows, length, V].
inline void draft_best(const std::vector<Row*>& rows, const float* logits, int64_t length, int width,
                       int64_t eos, int threads) {
  for_rows(rows.size(), threads, [&](int64_t i) {
    std::vector<int64_t>& drafted = rows[i]->drafted;
    const int64_t most = std::min(rows[i]->budget, length);
    for (int64_t at = 0; at < most && (drafted.empty() || drafted.back() != eos); ++at)
      drafted.push_back(best_isa().best_of(logits + (i * length + at) * width, width).token);
  });
}

// The weights of a block drafter.
struct Drafting {
  std::shared_ptr<BlockDrafter> network;
  Reader encoder;
  std::vector<Packed> keys_values;  // for each layer, and for the head
  Packed output;
  bool keeps_prefix;
  int64_t pad, longest, max_positions;  // longest: of a block; max_positions: of a text and its block
};

// Types that sources make likely: of a source's type those in `types` from its start up to the next.
struct Shortlists {
  Types starts, types, common;
  std::shared_ptr<Choices> choices;
};

class BlockNatDrafter : public Drafter {
 public:
  // candidates: of a position, 0 = all listed; confidence: under which drafts end, 0 = never;
  // cuts_all: those of rows that are not greedy, too.
  BlockNatDrafter(std::shared_ptr<Drafting> weights, std::optional<Shortlists> lists,
                  bool shares_encoder, int candidates, float confidence, bool cuts_all, int64_t eos)
      : weights_(std::move(weights)),
        lists_(std::move(lists)),
        candidates_(candidates),
        confidence_(confidence),
        cuts_all_(cuts_all),
        eos_(eos) {
    this->shares_encoder = shares_encoder;
    max_positions = weights_->max_positions;
  }

  // At their first draft.
  void join(const std::vector<Row*>& all, int threads) const override {
    std::vector<Row*> rows;
    for (Row* row : all)
      if (row->budget > 0 && !row->has_joined) rows.push_back(row);
    if (rows.empty()) return;
    for (Row* row : rows) {
      row->has_joined = true;
      if (lists_) row->listed = list(row->asked.source);
    }
    const auto sources = sources_of(rows);
    const Memory states =
        shares_encoder ? gathered(rows) : encode(weights_->encoder, sources, threads);
    remember(weights_->keys_values, states.get(), sources, rows, &Row::drafter_source, threads);
    if (weights_->network->queries) copy_sources(rows);
  }

  void draft(const std::vector<Row*>& rows, int threads) const override {
    const BlockDrafter& network = *weights_->network;
    const Stack& stack = *network.stack;
    int64_t length = 0;
    for (const Row* row : rows) length = std::max(length, row->budget);
    Plan plan;
    std::vector<int64_t> tokens, positions;
    std::vector<Attended> copied;
    for (size_t i = 0; i < rows.size(); ++i) {
      open(*rows[i], int(i), length, plan, tokens, positions);
      const auto& [all, keys, stride, width] = rows[i]->copied;
      if (network.queries) copied.push_back({keys, keys + stride, stack.dim(), nullptr, width});
    }
    hold(plan, rows, &Row::drafter_source, weights_->keeps_prefix ? &Row::drafter_own : nullptr,
         stack.size());
    const int64_t count = tokens.size(), dim = stack.dim(), num_rows = rows.size();
    std::vector<float> x(count * dim), places(count * dim), states(num_rows * length * dim);
    network.embed_block(plan.places, tokens.data(), positions.data(), copied, x.data(),
                        places.data());
    stack.follow(plan, x.data(), places.data(), {0, stack.size()}, states.data(), threads);
    Memory logits;
    if (!lists_) logits = logits_of(*weights_->output, states.data(), num_rows * length, threads);
    if (network.head)
      walk(rows, view<const float>(states.data(), num_rows, length, dim), logits.get(), threads);
    else
      draft_best(rows, logits.get(), length, weights_->output->linear.out, eos_, threads);
  }

 private:
  // The encoder states of some rows, [M, D], which are then let go.
  Memory gathered(const std::vector<Row*>& rows) const {
    const int64_t dim = weights_->encoder.stack->dim();
    int64_t count = 0;
    for (const Row* row : rows) count += row->width();
    const Memory states = memory_of(count * dim);
    float* out = states.get();
    for (Row* row : rows) {
      out = std::copy_n(row->encoded.get(), row->width() * dim, out);
      row->encoded.reset();
    }
    return states;
  }

  // A projection onto the types that a sentence's own make likely and the common ones, ascending.
  Packed list(const std::vector<int64_t>& source) const {
    const auto& [starts, types, common, choices] = *lists_;
    std::vector<uint8_t> listed(weights_->network->tables.tokens.size(0));
    const auto mark = [&](const int32_t* first, const int32_t* stop) {
      for (; first < stop; ++first) check_token(*first, listed.size()), listed[*first] = 1;
    };
    mark(common.data, common.data + common.count());
    for (int64_t id : source) {
      check_token(id, starts.count() - 1);
      const int64_t first = starts.data[id], stop = starts.data[id + 1];
      if (first < 0 || stop > types.count()) throw std::out_of_range("a list of types is cut off");
      mark(types.data + first, types.data + stop);
    }
    std::vector<int32_t> found;
    for (size_t type = 0; type < listed.size(); ++type)
      if (listed[type]) found.push_back(int32_t(type));
    return choices->pick(view<const int32_t>(found.data(), found.size()));
  }

  // Keeps what masks of these rows may copy.
  void copy_sources(const std::vector<Row*>& rows) const {
    const Tables& tables = weights_->encoder.tables;
    const int64_t width = tables.tokens.size(1);
    int64_t count = 0;
    for (const Row* row : rows) count += row->width();
    const Memory copied = memory_of(2 * count * width);
    float *keys = copied.get(), *values = keys + count * width;
    for (Row* row : rows) {
      std::vector<int64_t> positions(row->width());
      std::iota(positions.begin(), positions.end(), 0);
      weights_->encoder.embed(row->asked.source, positions, keys);
      for (int64_t token : row->asked.source) {
        tables.tokens.copy(token, values);
        values += width;
      }
      row->copied = {copied, keys, count * width, row->width()};
      keys += row->width() * width;
    }
  }

  // Plans what a pass reads of a row: its text, or what of it is not cached, and masks.
  void open(Row& row, int index, int64_t length, Plan& plan, std::vector<int64_t>& tokens,
            std::vector<int64_t>& positions) const {
    const Stack& stack = *weights_->network->stack;
    const int64_t known = int64_t(row.text.size()) - 1, room = max_positions - known;
    const int64_t masks = std::min(std::clamp<int64_t>(row.asked.block_size, 1, weights_->longest),
                                   std::max<int64_t>(room, 1));
    int64_t position = row.drafter_cached;
    const auto add = [&](int64_t token, int64_t seen) {
      plan.places.push_back({index, position, int(seen), nullptr});
      tokens.push_back(token);
      positions.push_back(position++);
    };
    plan.firsts.push_back(tokens.size());
    const auto first = row.text.begin() + 1;
    if (weights_->keeps_prefix) {
      row.drafter_own.reserve(stack.size(), known + masks, stack.cached());
      while (position < known) add(first[position], position + 1);
      row.drafter_cached = known;
    } else {  // everything sees everything but padding
      const int64_t seen = known - std::count(first, row.text.end(), weights_->pad) + masks;
      for (auto token = first; token < row.text.end(); ++token)
        if (*token != weights_->pad) add(*token, seen);
    }
    const int64_t begin = tokens.size(), stop = position + masks;
    while (position < stop) add(weights_->network->mask, stop);
    for (int64_t i = 0; i < length; ++i) plan.asked.push_back(begin + std::min(i, masks - 1));
  }

  // Drafts what the head chooses after states [rows, length, D], of what is listed or by logits.
  void walk(const std::vector<Row*>& rows, const Floats<3>& states, const float* logits,
            int threads) const {
    const BlockDrafter& network = *weights_->network;
    const int64_t count = rows.size(), length = states.size(1), width = network.tables.tokens.size(0);
    Blocks blocks{states, {}, {}, {}, network.tables.tokens};
    std::vector<int64_t> before;
    std::vector<SourceStates> read;
    for (const Row* row : rows) {
      before.push_back(row->text.back());
      if (lists_) blocks.lists.push_back(row->listed);
      if (network.head->heads) read.push_back(row->drafter_source.layer(network.stack->size()));
    }
    if (logits) blocks.logits = view(logits, count, length, width);
    blocks.before = view<const int64_t>(before.data(), count);
    std::vector<int64_t> drafted(count * length);
    std::vector<float> confidences(count * length);
    walk_blocks(blocks, *network.head, read, candidates_,
                {view(drafted.data(), count, length), view(confidences.data(), count, length)},
                threads);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t* own = drafted.data() + i * length;
      const float* sure = confidences.data() + i * length;
      const float least = cuts_all_ || rows[i]->is_greedy ? confidence_ : 0;
      float all = 1;  // the probability that all so far is accepted
      int64_t kept = 0;
      while (kept < rows[i]->budget && (least == 0 || (all *= sure[kept]) >= least)) ++kept;
      rows[i]->drafted.assign(own, own + up_to_eos(own, kept, eos_));
    }
  }

  const std::shared_ptr<Drafting> weights_;
  const std::optional<Shortlists> lists_;
  const int candidates_;
  const float confidence_;
  const bool cuts_all_;
  const int64_t eos_;
};

// Drafts what followed the same tokens earlier, in the source or in the text.
class LookupDrafter : public Drafter {
 public:
  static constexpr int64_t nothing = -1;

  // to_target: of a source's type, `nothing` where it has none; empty = the same. least, most: tokens
  // that must match, and that are compared.
  LookupDrafter(std::vector<int64_t> to_target, int64_t least, int64_t most)
      : to_target_(std::move(to_target)), least_(least), most_(most) {}

  void draft(const std::vector<Row*>& rows, int) const override {
    for (Row* row : rows) row->drafted = found(row->asked.source, row->text, row->budget);
  }

 private:
  std::vector<int64_t> found(const std::vector<int64_t>& source, const std::vector<int64_t>& text,
                             int64_t budget) const {
    std::vector<int64_t> all;
    for (int64_t token : source) all.push_back(to_target_.empty() ? token : to_target_.at(token));
    all.push_back(nothing);  // no match runs from one into the other
    all.insert(all.end(), text.begin() + 1, text.end());
    const auto matches = [&](size_t at) {
      int64_t count = 0;
      while (count < most_ && count < int64_t(std::min(at, text.size() - 1)) &&
             all[at - 1 - count] == text[text.size() - 1 - count])
        ++count;
      return all[at] == nothing ? 0 : count;
    };
    int64_t longest = least_ - 1;
    auto first = all.end();
    for (size_t at = 0; at < all.size(); ++at)
      if (const int64_t count = matches(at); count > longest) longest = count, first = all.begin() + at;
    const auto last = first + std::min<int64_t>(budget, all.end() - first);
    return {first, std::find(first, last, nothing)};
  }

  const std::vector<int64_t> to_target_;
  const int64_t least_, most_;
};

// Drafts token by token with the verifier's first layers. The verifying pass runs these again: it has
// to read their weights anyway, for the last drafted token.
class EarlyExitDrafter : public Drafter {
 public:
  // least: the log-probability below which drafts stop; -inf = never.
  EarlyExitDrafter(std::shared_ptr<Verifying> verifier, int layers, float least, int64_t eos)
      : verifier_(std::move(verifier)), layers_(layers), least_(least), eos_(eos) {}

  void draft(const std::vector<Row*>& rows, int threads) const override {
    thread_local Verified exit;
    std::vector<int64_t> cached;  // by all layers
    for (const Row* row : rows) cached.push_back(row->cached);
    for (std::vector<Row*> going = rows; !going.empty();) {
      exit.read(*verifier_, going, layers_, true, threads);
      const auto stops = [&](Row* row) { return !extend(*row); };
      going.erase(std::remove_if(going.begin(), going.end(), stops), going.end());
    }
    for (size_t i = 0; i < rows.size(); ++i) rows[i]->cached = cached[i];
  }

 private:
  // Returns whether the row drafts on.
  bool extend(Row& row) const {
    const int width = verifier_->output->linear.out;
    const int64_t best = best_isa().best_of(row.logits, width).token;
    const bool is_sure = least_ == -INFINITY ||
                         row.logits[best] - best_isa().log_total_of(row.logits, width) >= least_;
    if (!is_sure) return false;
    row.cached = int64_t(row.text.size() + row.drafted.size());
    row.drafted.push_back(best);
    return best != eos_ && int64_t(row.drafted.size()) < row.budget;
  }

  const std::shared_ptr<Verifying> verifier_;
  const int layers_;
  const float least_;
  const int64_t eos_;
};

// Drafts what heads say of the state that gave a row's last token, from the second round on.
class MedusaDrafter : public Drafter {
 public:
  MedusaDrafter(std::shared_ptr<Verifying> verifier, std::shared_ptr<Heads> heads, int64_t eos)
      : verifier_(std::move(verifier)), heads_(std::move(heads)), eos_(eos) {}

  // What was before is not known here, nor to the slow twin.
  void join(const std::vector<Row*>& rows, int) const override {
    for (Row* row : rows)
      if (!std::exchange(row->has_joined, true)) row->state.clear();
  }

  void draft(const std::vector<Row*>& all, int threads) const override {
    const int64_t dim = verifier_->decoder.stack->dim();
    std::vector<Row*> rows;
    std::vector<float> last;
    int64_t length = 0;
    for (Row* row : all) {
      if (row->state.empty()) continue;
      rows.push_back(row);
      last.insert(last.end(), row->state.begin(), row->state.end());
      length = std::max(length, std::min(row->budget, heads_->count()));
    }
    const int64_t num_rows = rows.size(), count = num_rows * length;
    if (!count) return;
    std::vector<float> states(count * dim);
    heads_->read(view<const float>(last.data(), num_rows, dim),
                 view(states.data(), num_rows, length, dim), threads);
    const Memory logits = logits_of(*verifier_->output, states.data(), count, threads);
    draft_best(rows, logits.get(), length, verifier_->output->linear.out, eos_, threads);
  }

 private:
  const std::shared_ptr<Verifying> verifier_;
  const std::shared_ptr<Heads> heads_;
  const int64_t eos_;
};

}  // namespace specdec
