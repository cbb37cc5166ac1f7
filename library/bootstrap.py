# Imports the kfp-distributed that compiled this step: installed, or in a ConfigMap.
import base64, hashlib, http.client, io, json, os, re, ssl, sys, tempfile, time, zipfile
NAME, HASH = '@NAME@', '@HASH@'
ACCOUNT = '/var/run/secrets/kubernetes.io/serviceaccount/'

def find_library():
  try:
    from kfp_distributed.library.content import content_hash, read_library
    if content_hash(read_library()) == HASH: return
  except ImportError: pass
  if not os.path.exists(ACCOUNT + 'token'): sys.exit(f'{sys.executable} lacks {NAME}: install it, or compile anew')
  namespace, token = (open(ACCOUNT + name).read().strip() for name in ('namespace', 'token'))
  for pause in 1, 2, 4, 8, 0:
    try: return fetch(f'/api/v1/namespaces/{namespace}/configmaps/{NAME}', token)
    except (OSError, http.client.HTTPException, json.JSONDecodeError) as error:
      if not pause: sys.exit(f'ConfigMap {namespace}/{NAME} cannot be read: {error!r}')
    except Exception as error:
      mend = [f'run kfp-distributed install --namespace {namespace}', *re.findall(r':([^:\s]+)"', f'{error}')]
      sys.exit(f'ConfigMap {namespace}/{NAME}: {error}; {" --service-account ".join(mend)}')
    time.sleep(pause)

def fetch(path, token):
  host = (os.environ['KUBERNETES_SERVICE_' + part] for part in ('HOST', 'PORT'))
  server = http.client.HTTPSConnection(*host, timeout=10, context=ssl.create_default_context(cafile=ACCOUNT + 'ca.crt'))
  server.request('GET', path, headers={'Authorization': 'Bearer ' + token})
  reply = server.getresponse()
  if reply.status > 428: raise OSError(reply.status)
  answer = json.load(reply)
  if reply.status > 299: raise ValueError(answer['message'])
  key = 'library.zip'
  archive = zipfile.ZipFile(io.BytesIO(base64.b64decode(answer['binaryData'][key])))
  if key in archive.namelist(): archive = zipfile.ZipFile(io.BytesIO(archive.read(key)))
  files = [(name, archive.read(name)) for name in archive.namelist() if name[-1] != '/']
  if hashlib.sha256(b''.join(f'{n}\0{len(d)}\0'.encode() + d for n, d in files)).hexdigest() != HASH:
    raise ValueError('its content has another hash')
  sys.path.insert(0, tempfile.mkdtemp())
  archive.extractall(sys.path[0])
  for name in '', '.library', '.library.content': sys.modules.pop('kfp_distributed' + name, None)

find_library()
