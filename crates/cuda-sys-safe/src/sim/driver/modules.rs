//! Modules. Of PTX text, the simulator checks version, target and braces, and reads the names of
//! kernels and the sizes of their parameters.

use std::ffi::CStr;
use std::sync::Arc;

use crate::sim::CallKind;
use crate::sim::state::modules::{FunctionState, Image, ModuleState, PtxEntry};
use crate::sim::state::{SimState, error};
use crate::*;

/// The newest PTX ISA that the simulated driver understands.
const NEWEST_PTX: (u32, u32) = (8, 7);

impl SimState {
    pub(super) fn module_load(&mut self, device: usize, image: &[u8]) -> Result<ModuleHandle> {
        let image = if image.starts_with(b"\x7fELF") {
            Image::Cubin(image.to_vec())
        } else {
            Image::Ptx(self.read_ptx(device, image)?)
        };
        let id = self.fresh();
        self.modules.insert(id, ModuleState { device, image });
        // SAFETY: this driver has just created the object.
        Ok(unsafe { ModuleHandle::from_raw(device, id) })
    }

    fn read_ptx(&self, device: usize, image: &[u8]) -> Result<Vec<PtxEntry>> {
        let refuse = |code, why: &str| Err(error(CallKind::ModuleLoad, code, device, why));
        let end = image.iter().position(|&b| b == 0).unwrap_or(image.len());
        let Ok(text) = std::str::from_utf8(&image[..end]) else {
            return refuse(CudaCode::INVALID_IMAGE, "neither PTX text nor a cubin");
        };
        let text = without_comments(text);
        let word_after = |directive: &str| {
            let rest = &text[text.find(directive)? + directive.len()..];
            rest.split_whitespace().next()
        };
        let (Some(version), Some(target)) = (word_after(".version"), word_after(".target")) else {
            return refuse(CudaCode::INVALID_PTX, "no .version or no .target");
        };
        let parsed =
            version.split_once('.').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
        match parsed {
            None => return refuse(CudaCode::INVALID_PTX, "malformed .version"),
            Some(version) if version > NEWEST_PTX => {
                return refuse(CudaCode::UNSUPPORTED_PTX_VERSION, "");
            }
            Some(_) => {}
        }
        let (major, minor) = self.devices[device].properties.compute_capability;
        let digits = target.trim_start_matches("sm_");
        let digits: String = digits.chars().take_while(char::is_ascii_digit).collect();
        match digits.parse::<u32>() {
            Ok(target) if target <= major * 10 + minor => {}
            _ => return refuse(CudaCode::INVALID_PTX, "its .target is not for this device"),
        }
        if text.matches('{').count() != text.matches('}').count() {
            return refuse(CudaCode::INVALID_PTX, "its braces do not match");
        }
        Ok(text.split(".entry").skip(1).filter_map(PtxEntry::read).collect())
    }

    pub(super) fn module_unload(&mut self, module: ModuleHandle) -> Result<()> {
        self.module(CallKind::ModuleUnload, module)?;
        self.modules.remove(&module.raw());
        self.functions.retain(|_, f| f.module != module.raw());
        Ok(())
    }

    fn module(&self, call: CallKind, handle: ModuleHandle) -> Result<&ModuleState> {
        match self.modules.get(&handle.raw()) {
            Some(module) if module.device == handle.device() => Ok(module),
            _ => Err(error(call, CudaCode::INVALID_HANDLE, handle.device(), "no such module")),
        }
    }

    pub(super) fn module_function(
        &mut self,
        handle: ModuleHandle,
        name: &CStr,
    ) -> Result<FunctionHandle> {
        let call = CallKind::ModuleFunction;
        let module = self.module(call, handle)?;
        let device = handle.device();
        let params = match &module.image {
            Image::Ptx(entries) => {
                let entry = entries.iter().find(|entry| entry.name.as_bytes() == name.to_bytes());
                entry.map(|entry| Arc::clone(&entry.params))
            }
            Image::Cubin(bytes) => {
                let section = [b".text.", name.to_bytes_with_nul()].concat();
                bytes.windows(section.len()).any(|w| w == section).then(|| Arc::from([]))
            }
        };
        let Some(params) = params else {
            let why = format!("no kernel {name:?} in the module");
            return Err(error(call, CudaCode::NOT_FOUND, device, &why));
        };
        let id = self.fresh();
        let max_shared = self.devices[device].properties.shared_memory_per_block as u32;
        self.functions
            .insert(id, FunctionState { device, module: handle.raw(), params, max_shared });
        // SAFETY: this driver has just created the object.
        Ok(unsafe { FunctionHandle::from_raw(device, id) })
    }

    pub(super) fn function_max_shared(&mut self, handle: FunctionHandle, bytes: u32) -> Result<()> {
        let call = CallKind::FunctionMaxShared;
        let device = handle.device();
        let most = self.devices[device].properties.shared_memory_per_block_optin;
        let Some(function) = self.functions.get_mut(&handle.raw()) else {
            return Err(error(call, CudaCode::INVALID_HANDLE, device, "no such function"));
        };
        if bytes as usize > most {
            let why = format!("a block has at most {most} bytes of shared memory");
            return Err(error(call, CudaCode::INVALID_VALUE, device, &why));
        }
        function.max_shared = bytes;
        Ok(())
    }
}

impl PtxEntry {
    /// Parses the text after `.entry`: a name, and a list of parameters in parentheses.
    fn read(text: &str) -> Option<Self> {
        let name = text.split(['(', '{']).next()?.trim().to_owned();
        let list = text[..text.find('{').unwrap_or(text.len())].split_once('(');
        let list = list.and_then(|(_, rest)| rest.rsplit_once(')')).map_or("", |(list, _)| list);
        let params = list.split(',').filter_map(param_size).collect();
        Some(Self { name, params })
    }
}

/// Returns the size of a parameter such as `.param .u64 name` or `.param .align 8 .b8 name[104]`.
fn param_size(declaration: &str) -> Option<usize> {
    let mut words = declaration.split_whitespace();
    let bits = words.clone().find_map(|word| {
        let digits = word.strip_prefix('.')?.trim_start_matches(['b', 'u', 's', 'f']);
        digits.parse::<usize>().ok()
    })?;
    let count = words.next_back().and_then(|name| name.split_once('['));
    let count = count.and_then(|(_, count)| count.trim_end_matches(']').parse().ok());
    Some(bits / 8 * count.unwrap_or(1))
}

/// Removes comments, which have the syntax of C.
fn without_comments(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, from)) = rest.split_once('/') {
        out.push_str(before);
        let (end, skip) = match from.as_bytes().first() {
            Some(b'/') => ("\n", 0),
            Some(b'*') => ("*/", 2),
            _ => {
                out.push('/');
                rest = from;
                continue;
            }
        };
        out.push(' ');
        rest = from[1..].find(end).map_or("", |i| &from[1 + i + skip..]);
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::without_comments;

    #[test]
    fn comments_are_removed() {
        assert_eq!(without_comments("a // .entry b(\nc /* d\n */e"), "a  \nc  e");
        assert_eq!(without_comments("a /* open"), "a  ");
        assert_eq!(without_comments("a / b /*/ c */ /"), "a / b   /");
    }
}
