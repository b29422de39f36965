//! Tests that a backward pass runs its nodes in PyTorch's order, which is the same in each run.
//!
//! PyTorch runs the ready node with the highest sequence number. A thread numbers its nodes in the
//! order of their creation, and accumulators have the highest number. If several threads recorded
//! parts of the graph, ready nodes run in the order in which they became ready.

use std::collections::HashMap;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;

use warpline::autograd::{BackwardTensorsOptions, Context, Function, Gradients, ToSave, backward};
use warpline::functional::linear;
use warpline::{Result, Tensor, ones, stack, tensor};

use crate::common;

/// Names of the nodes and leaves that a pass has visited, in order.
type Log = Arc<Mutex<Vec<String>>>;

/// A weighted sum of its inputs. The rounding of gradients depends on the order of additions.
struct WeightedSum {
    name: String,
    log: Log,
}

impl Function for WeightedSum {
    const NAME: &'static str = "mix";

    fn forward(&self, _: &mut ToSave, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        let mut sum = inputs[0].mul(0.7)?;
        for (i, input) in inputs.iter().enumerate().skip(1) {
            sum = sum.add_scaled(input, 1.0 / (i as f64 + 2.3))?;
        }
        Ok(vec![sum])
    }

    fn backward(&self, context: &Context<'_>, grads: &[Option<Tensor>]) -> Result<Gradients> {
        self.log.lock().unwrap().push(self.name.clone());
        let grad = grads[0].as_ref().expect("a gradient");
        (0..context.inputs()).map(|i| grad.mul(1.0 / (i as f64 + 1.9)).map(Some)).collect()
    }
}

fn leaf(name: String, value: f32, log: &Log) -> Result<Tensor> {
    let leaf = tensor([value, value / 3.0], ())?.requires_grad_(true)?;
    let log = log.clone();
    leaf.register_post_accumulate_grad_hook(move |_| {
        log.lock().unwrap().push(name.clone());
        Ok(())
    })?;
    Ok(leaf)
}

/// A pseudorandom generator (splitmix64).
struct SplitMix(u64);

impl SplitMix {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n as u64) as usize
    }
}

/// A graph: the inputs of each op, which are leaves (numbers less than `LEAVES`) or earlier ops.
struct OpGraph {
    ops: Vec<Vec<usize>>,
    roots: Vec<usize>,
}

const LEAVES: usize = 5;

/// The record of a pass: the order of its nodes and leaves, and the bits of each leaf's gradient.
type PassRecord = (Vec<String>, Vec<Option<Vec<u32>>>);

impl OpGraph {
    fn new(seed: u64) -> Self {
        let mut numbers = SplitMix(seed);
        let mut ops: Vec<Vec<usize>> = Vec::new();
        for op in 0..6 + numbers.below(10) {
            let inputs = 1 + numbers.below(5);
            ops.push((0..inputs).map(|_| numbers.below(LEAVES + op)).collect());
        }
        let mut roots: Vec<usize> = (0..3).map(|_| LEAVES + numbers.below(ops.len())).collect();
        roots.push(LEAVES + ops.len() - 1);
        Self { ops, roots }
    }

    fn record(&self) -> Result<RecordedGraph> {
        let log = Log::default();
        let leaves = (0..LEAVES).map(|i| leaf(format!("leaf {i}"), 0.1 + i as f32, &log));
        let leaves = leaves.collect::<Result<Vec<_>>>()?;
        let mut made = leaves.clone();
        for (i, inputs) in self.ops.iter().enumerate() {
            let inputs: Vec<&Tensor> = inputs.iter().map(|&input| &made[input]).collect();
            let mix = WeightedSum { name: format!("op {i}"), log: log.clone() };
            made.push(mix.apply(&inputs)?.remove(0));
        }
        let roots = self.roots.iter().map(|&root| made[root].clone()).collect();
        Ok(RecordedGraph { leaves, roots, log })
    }

    fn run(&self) -> Result<PassRecord> {
        self.record()?.run_pass()
    }

    /// Computes the order of the pass from the lists of inputs, by PyTorch's rule.
    fn expected(&self) -> Vec<String> {
        let inputs = |node: usize| node.checked_sub(LEAVES).map_or(&[][..], |op| &self.ops[op][..]);
        let mut missing: HashMap<usize, usize> = HashMap::new();
        let (mut stack, mut seen) = (self.roots.clone(), Vec::new());
        while let Some(node) = stack.pop() {
            if !seen.contains(&node) {
                seen.push(node);
                for &input in inputs(node) {
                    *missing.entry(input).or_default() += 1;
                    stack.push(input);
                }
            }
        }
        let mut ready: Vec<usize> = Vec::new();
        for &root in &self.roots {
            if !missing.contains_key(&root) && !ready.contains(&root) {
                ready.push(root);
            }
        }
        let mut order = Vec::new();
        while !ready.is_empty() {
            let number = |node: usize| if node < LEAVES { usize::MAX } else { node };
            let highest = ready.iter().map(|&node| number(node)).max();
            let next = ready.iter().position(|&node| Some(number(node)) == highest).unwrap();
            let node = ready.remove(next);
            order.push(match node.checked_sub(LEAVES) {
                None => format!("leaf {node}"),
                Some(op) => format!("op {op}"),
            });
            for &input in inputs(node) {
                let missing = missing.get_mut(&input).unwrap();
                *missing -= 1;
                if *missing == 0 {
                    ready.push(input);
                }
            }
        }
        order
    }
}

struct RecordedGraph {
    leaves: Vec<Tensor>,
    roots: Vec<Tensor>,
    log: Log,
}

impl RecordedGraph {
    /// Runs a backward pass, which keeps the graph.
    fn run_pass(&self) -> Result<PassRecord> {
        self.leaves.iter().try_for_each(|leaf| leaf.set_grad(None).map(drop))?;
        let start = tensor([1.1f32, 0.9], ())?;
        let roots: Vec<&Tensor> = self.roots.iter().collect();
        let given = vec![Some(&start); roots.len()];
        let options = BackwardTensorsOptions::new().grad_tensors(&given).retain_graph(true);
        backward(&roots, options)?;
        let bits = |leaf: &Tensor| {
            let grad = leaf.grad()?.to_vec::<f32>().expect("a gradient");
            Some(grad.into_iter().map(f32::to_bits).collect())
        };
        let gradients = self.leaves.iter().map(bits).collect();
        let order = std::mem::take(&mut *self.log.lock().unwrap());
        Ok((order, gradients))
    }
}

#[test]
fn passes_run_in_the_order_of_pytorchs_sequence_numbers() {
    common::cpu(|_| {
        for seed in 0..200 {
            let plan = OpGraph::new(seed);
            assert_eq!(plan.run()?.0, plan.expected(), "seed {seed}");
        }
        Ok(())
    });
}

#[test]
fn a_thousand_passes_give_the_same_bits_in_the_same_order_in_one_thread_and_in_several() {
    common::cpu(|world| {
        let plans: Vec<OpGraph> = (1000..1005).map(OpGraph::new).collect();
        let first = plans.iter().map(OpGraph::run).collect::<Result<Vec<_>>>()?;
        let again = |passes: usize| {
            for i in 0..passes {
                let (plan, first) = (&plans[i % plans.len()], &first[i % plans.len()]);
                assert_eq!(plan.run().expect("a pass"), *first, "pass {i}");
            }
        };
        again(500);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| warpline::with_runtime(&world.runtime, || again(125)));
            }
        });
        Ok(())
    });
}

#[test]
fn a_graph_gives_the_same_bits_in_the_same_order_from_any_thread() {
    common::cpu(|world| {
        for seed in 0..50 {
            let graph = OpGraph::new(seed).record()?;
            let own = graph.run_pass()?;
            let other = thread::scope(|scope| {
                let run = || warpline::with_runtime(&world.runtime, || graph.run_pass());
                scope.spawn(run).join().expect("no panic")
            })?;
            assert_eq!(own, other, "seed {seed}");
        }
        Ok(())
    });
}

/// A part of a graph, which one of several threads records.
struct Part {
    number: usize,
    shared: Tensor,
    log: Log,
    result: Sender<(usize, Result<Tensor>)>,
}

impl Part {
    /// Records a chain of `number + 3` sums, each of which uses the shared leaf.
    fn record(&self) -> Result<Tensor> {
        let mut y = self.shared.clone();
        for i in 0..3 + self.number {
            let name = format!("{}.{i}", self.number);
            let sum = WeightedSum { name, log: self.log.clone() };
            y = sum.apply(&[&y, &self.shared])?.remove(0);
        }
        Ok(y)
    }
}

#[test]
fn graphs_recorded_by_several_threads_run_in_the_same_order_each_time() {
    const PARTS: usize = 3;
    let pass = |workers: &[Sender<Part>], numbers: &mut SplitMix| {
        let log = Log::default();
        let shared = leaf("leaf".into(), 0.3, &log)?;
        let (result, results) = channel();
        for number in 0..PARTS {
            let (shared, log, result) = (shared.clone(), log.clone(), result.clone());
            let part = Part { number, shared, log, result };
            workers[numbers.below(workers.len())].send(part).expect("a worker");
        }
        drop(result);
        let mut parts: Vec<_> = results.iter().collect();
        parts.sort_by_key(|(number, _)| *number);
        let parts = parts.into_iter().map(|(_, part)| part).collect::<Result<Vec<_>>>()?;
        stack(&parts, 0)?.sum(())?.backward()?;
        let order = std::mem::take(&mut *log.lock().unwrap());
        let gradient = shared.grad().expect("a gradient").to_vec::<f32>()?;
        Ok::<_, warpline::Error>((
            order,
            gradient.into_iter().map(f32::to_bits).collect::<Vec<_>>(),
        ))
    };
    common::cpu(|world| {
        thread::scope(|scope| {
            let workers = [(); PARTS].map(|()| {
                let (worker, parts) = channel::<Part>();
                scope.spawn(move || {
                    warpline::with_runtime(&world.runtime, || {
                        for part in parts {
                            let recorded = part.record();
                            part.result.send((part.number, recorded)).expect("a pass waits");
                        }
                    });
                });
                worker
            });
            let mut numbers = SplitMix(7);
            let first = pass(&workers, &mut numbers)?;
            let expected = [
                "0.2", "1.3", "2.4", "0.1", "1.2", "2.3", "0.0", "1.1", "2.2", "1.0", "2.1", "2.0",
                "leaf",
            ];
            assert_eq!(first.0, expected);
            for i in 0..1000 {
                assert_eq!(pass(&workers, &mut numbers)?, first, "pass {i}");
            }
            Ok(())
        })
    });
}

#[test]
fn a_networks_gradients_arrive_in_pytorchs_order() {
    common::cpu(|_| {
        for _ in 0..200 {
            let log = Log::default();
            let parameter = |name: &str, sizes: &[usize]| {
                let (log, name) = (log.clone(), name.to_owned());
                let leaf = ones(sizes, ())?.requires_grad_(true)?;
                leaf.register_post_accumulate_grad_hook(move |_| {
                    log.lock().unwrap().push(name.clone());
                    Ok(())
                })?;
                Ok::<_, warpline::Error>(leaf)
            };
            let (w0, b0) = (parameter("0.weight", &[5, 10])?, parameter("0.bias", &[5])?);
            let (w2, b2) = (parameter("2.weight", &[3, 5])?, parameter("2.bias", &[3])?);
            let hidden = linear(&ones([4, 10], ())?, &w0, &b0)?.relu()?;
            linear(&hidden, &w2, &b2)?.sum(())?.backward()?;
            assert_eq!(*log.lock().unwrap(), ["2.bias", "2.weight", "0.bias", "0.weight"]);
        }
        Ok(())
    });
}
