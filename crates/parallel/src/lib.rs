//! Many GPUs and many processes: `DataParallel` and process groups (`torch.nn.DataParallel`,
//! `torch.distributed`).

#![forbid(unsafe_code)]

pub mod distributed;
